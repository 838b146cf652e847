"""Measuring retrieval: questions whose answers are known, asked of a real store."""
