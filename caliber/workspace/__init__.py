"""Workspace that the agents of a store share: values under keys, to-dos, and a calendar."""
