"""Schema versions, and steps of declared memories."""
