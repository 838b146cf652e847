"""Bulk load into PostgreSQL and bulk read from it: binary COPY, encoded and decoded in C."""
