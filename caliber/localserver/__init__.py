"""Private PostgreSQL servers for tests, benchmarks and the demonstration."""
