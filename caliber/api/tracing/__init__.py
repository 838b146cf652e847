"""Tracing of an open tenant: handles and parts that tell a tracer of their operations; loaded where one is wired."""
