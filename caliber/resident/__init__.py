"""Resident memory: columnar mirrors that reads are served from."""
