"""Providers that call a service over HTTP: requests, rate limits, parsing of answers."""
