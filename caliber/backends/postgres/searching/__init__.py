"""Full-text and vector indexes inside PostgreSQL, and their statements."""
