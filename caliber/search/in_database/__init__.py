"""The twin of the search in memory, for tenants whose records stay in the database."""
