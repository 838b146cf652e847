"""Dumps of a whole store: archives for backups, and the relations that they hold."""
