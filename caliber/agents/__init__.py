"""Coordination of agents that share one store: views of roles over notes, and locks."""
