"""Providers that compute on this machine, without a network or a language model."""
