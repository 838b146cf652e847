"""Migrations: versions of the built-in schema, and changes of declared memories."""
