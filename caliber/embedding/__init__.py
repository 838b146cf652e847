"""Embedding of records: vectors computed before or after a commit, one space per model, and re-embedding."""
