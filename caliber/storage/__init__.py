"""Storage: plans compiled from relations, the unit of work, migrations and change records."""
