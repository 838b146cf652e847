"""Loading whole relations into PostgreSQL and reading them: binary COPY, encoded and decoded in C."""
