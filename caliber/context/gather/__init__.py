"""Gathering of a window's candidates: conversation, recalled search hits, and records of injection rules."""
