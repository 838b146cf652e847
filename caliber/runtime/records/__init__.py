"""Records of memories: their conditions, checks, reads and writes; ``Caliber.memory(name)``."""
