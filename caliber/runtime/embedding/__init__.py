"""Vectors of one tenant: made before a commit or behind it, kept in spaces, and moved from one model to another."""
