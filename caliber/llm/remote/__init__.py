"""Providers that ask a service over HTTP: requests, pacing, answers."""
