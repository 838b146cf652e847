"""The asynchronous face of several tenants."""
