"""Summaries of blocks of turns, made behind the commit."""
