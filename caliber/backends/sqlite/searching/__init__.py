"""Full-text index inside SQLite, and its statements."""
