"""Command ``demo``: imports a repository into a new store, and shows windows, search and timings."""
