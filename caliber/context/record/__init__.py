"""Stored record of a window: its packed binary format, and the log that writes it."""
