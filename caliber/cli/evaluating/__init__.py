"""Measuring search on the user's own questions: reading them, judging answers, explaining misses."""
