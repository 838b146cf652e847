"""Adapters for other products, each imported by the program that uses it, and by nothing of CALIBER."""
