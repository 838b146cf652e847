"""One side of a move between databases, and the fence around a file that is about to move."""
