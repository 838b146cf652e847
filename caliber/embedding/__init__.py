"""Vectors of records: made before a commit or behind it, one space for each model, and re-embedding."""
