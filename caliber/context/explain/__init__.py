"""Windows again: why a record is in one or not, and the same bytes from its record."""
