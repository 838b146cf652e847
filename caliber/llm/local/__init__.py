"""Providers that compute on this machine: no network, no language model."""
