"""Write path: unit of work, group commit, change records and the change feed."""
