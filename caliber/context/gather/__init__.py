"""Candidates of a window: the conversation, the hits of a search, and the records that rules select."""
