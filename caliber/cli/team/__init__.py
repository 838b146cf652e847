"""Commands about agents that share a store: the registry, locks, messages and shared work."""
