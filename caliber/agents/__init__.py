"""Agents: so far the locks between them."""
