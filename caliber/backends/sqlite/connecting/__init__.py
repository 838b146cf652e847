"""Connections of one file: opened, checked, carried across forks; plans run on them."""
