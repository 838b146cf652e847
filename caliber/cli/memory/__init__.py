"""Commands over the records of a store: search, windows, imports, rights, jobs, forgetting."""
