"""Legs of a search, their scores joined, and the least evidence for a candidate."""
