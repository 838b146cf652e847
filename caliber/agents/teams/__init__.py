"""Groups of agents, and whose turn it is to speak."""
