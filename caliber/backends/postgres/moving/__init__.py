"""PostgreSQL as source or target of a tenant move: the copy, and the fence against writes."""
