"""Statements from declarations: plans, codecs, conditions, and the sessions that run them."""
