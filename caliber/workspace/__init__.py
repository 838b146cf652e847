"""Workspace that the agents of a store share: values under keys, tasks to do, and a calendar."""
