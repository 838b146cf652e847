"""Maintenance of a SQLite file: checks, backup, restore, removal of erased bytes."""
