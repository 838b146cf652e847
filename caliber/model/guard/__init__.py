"""Data types of the guard of memory."""
