"""Maintenance of a store: vacuum, integrity checks, byte-level erasure, copying to another place, SQL views."""
