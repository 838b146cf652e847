"""Irregular statements, one module a subsystem."""
