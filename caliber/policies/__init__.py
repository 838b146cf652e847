"""Policies: configured actions (summarize, prune, notify, …) that run on triggers and schedules."""
