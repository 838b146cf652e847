"""Trajectories: their sessions, scopes, turns and artifacts."""
