"""Keyword index kernels: tokenizing, postings lists and BM25 scores, in C with a Python reference."""
