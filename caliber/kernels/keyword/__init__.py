"""The keyword index: words of texts, postings, BM25; over C, and its twin."""
