"""Irregular SQL statements (those not generated per relation), one module per subsystem."""
