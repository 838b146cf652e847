"""Maintenance of a store: vacuum, views, integrity, erasing, moving, views for people."""
