"""Explanation and replay of earlier windows, from their stored records."""
