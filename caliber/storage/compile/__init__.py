"""Compilation of relations to SQL: statement plans, row codecs, conditions, and sessions that run plans."""
