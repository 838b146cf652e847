"""Imports of git histories, conversations and files as turns, notes and artifacts; repeatable."""
