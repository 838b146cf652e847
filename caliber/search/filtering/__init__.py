"""Records that a search may find: filters of callers, and what a principal may see."""
