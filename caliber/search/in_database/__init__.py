"""Search inside the database, with the results of the in-memory search, for tenants whose records are not resident."""
