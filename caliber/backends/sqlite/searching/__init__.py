"""Full text that SQLite keeps, and the statements about it."""
