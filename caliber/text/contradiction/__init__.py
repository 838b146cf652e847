"""Contradictions between two statements, found by rules: reading of clauses, and their comparison."""
