"""Tenants spread over several databases: the directory of their places, and moving one to another place.

Source: O-1, design section 3; docs/decisions/0130 to 0132.
"""
