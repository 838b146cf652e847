"""Tenants spread over several databases: the directory that says which is where, and moving one to another place.

Source: O-1, design section 3; docs/decisions/0130 to 0132.
"""
