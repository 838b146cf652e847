"""Keyword index kernels: tokenizing, postings lists and BM25 scores, in C."""
