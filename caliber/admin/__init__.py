"""Administration of a tenant: tables, backup, checks, stats, maintenance, rebuilds."""
