"""Token counting of texts, estimated or exact, and truncation to a number of tokens."""
