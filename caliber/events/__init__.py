"""Events: the in-process event bus, and its facet."""
