"""PCP, the guard of the memory: so far its checkpoints."""
