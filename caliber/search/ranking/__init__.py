"""Ranking of search candidates: scores of each retrieval leg, their fusion, and the relevance floor."""
