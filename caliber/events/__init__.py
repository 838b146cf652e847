"""Events: the log and the bus."""
