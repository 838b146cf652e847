"""Search by keyword, vector and graph over a tenant's records, in resident memory or in the database."""
