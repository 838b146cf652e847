"""Asynchronous face: generated classes with ``async`` methods, one module for the facets of a room."""
