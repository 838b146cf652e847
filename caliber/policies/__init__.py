"""Policies: actions at triggers and on schedules."""
