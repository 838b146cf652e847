"""Private PostgreSQL server for tests, benchmarks and the demo: installed from a wheel, removed at exit."""
