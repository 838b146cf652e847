"""Events: the in-process event bus, and the log."""
