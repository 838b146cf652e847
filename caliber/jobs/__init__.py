"""Durable job queue: background work in database rows, claimed with a lease, acknowledged with its own writes."""
