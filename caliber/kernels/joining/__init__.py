"""Scores of several legs joined into one, and the best of them: the kernel and its twin."""
