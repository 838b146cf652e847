"""Tenancy: many tenants over several databases, with a directory of their places and moves between them.

Source: O-1, design section 3; docs/decisions/0130 to 0132.
"""
