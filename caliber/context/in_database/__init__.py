"""Window assembly for tenants whose records are not in memory: reads the rows it needs from the database."""
