"""One side of a move between databases, and the fence around a schema that is about to move."""
