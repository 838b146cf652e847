"""Windows of tenants whose records stay in the database."""
