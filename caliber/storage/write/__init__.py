"""Writing: the unit of work, shared transactions, changes and their feed."""
