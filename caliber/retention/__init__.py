"""Retention: deletes, archives or compresses records that are too old, too many, or replaced by a summary."""
