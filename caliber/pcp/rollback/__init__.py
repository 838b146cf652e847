"""Rollback of tasks: the packed state of a checkpoint, the records in reach, and the plan of a recovery."""
