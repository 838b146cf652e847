"""Records of one memory, built-in or declared: find, count, search, insert, update, archive, delete."""
