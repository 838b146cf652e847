"""Administration of a tenant: storage tables, backup, checks, statistics, maintenance, rebuilds."""
