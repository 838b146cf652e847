"""PostgreSQL connections of one store: opening, pooling, retries, and binary-protocol statements."""
