"""Trajectories (tasks) and their sessions, scopes, turns and artifacts."""
