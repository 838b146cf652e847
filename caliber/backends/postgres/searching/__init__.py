"""Full text and vector indexes that PostgreSQL keeps, and the statements about them."""
