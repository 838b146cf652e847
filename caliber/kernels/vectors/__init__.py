"""Vectors in memory: exact search, scores, near pairs; over C, and their twins."""
