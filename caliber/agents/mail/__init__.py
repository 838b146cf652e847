"""Messages between agents: sending, receiving by lease, waking."""
