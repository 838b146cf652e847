"""Transactions of locks: queues of their resources, and removal of ended ones."""
