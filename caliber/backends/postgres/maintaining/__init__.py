"""Maintenance of a tenant's PostgreSQL schema: checks, backup, restore, removal of erased bytes."""
