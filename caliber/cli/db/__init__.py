"""Commands ``db``: administration of the store."""
