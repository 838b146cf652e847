"""Conflicts between agents: recorded as they come up, escalated, and resolved."""
