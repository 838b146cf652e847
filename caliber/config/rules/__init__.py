"""Validation rules that involve several settings."""
