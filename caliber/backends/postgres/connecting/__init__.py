"""Connections of one store: opened, pooled, retried; plans run on them in the binary protocol."""
