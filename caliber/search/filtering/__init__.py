"""Filtering of search candidates: the caller's filters, and visibility for the principal."""
