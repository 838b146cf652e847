"""Coordination of agents that share one store, by locks."""
