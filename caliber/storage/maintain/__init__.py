"""Maintenance of a store: care, integrity, erasing, moving, views for people."""
