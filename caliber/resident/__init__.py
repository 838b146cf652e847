"""Resident memory: a tenant's records as in-memory columns that reads use instead of SQL."""
