"""Helpers of several test modules: configurations, providers that count or fail, generated entities."""
