"""Access control: which records a principal may see, and which it may change."""
