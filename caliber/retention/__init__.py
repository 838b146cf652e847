"""Retention: the time that records stay, and compression."""
