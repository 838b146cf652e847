"""Token counts of texts, estimated or exact, and cutting text to a number of tokens."""
