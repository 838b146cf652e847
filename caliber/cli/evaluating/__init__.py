"""Evaluation of search and windows on a user's own questions with expected answers."""
