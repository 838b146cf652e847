"""Storage layer, independent of the database: SQL plans from relations, unit of work, migrations, change records."""
