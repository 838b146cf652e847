"""Agents that share one store: their locks."""
