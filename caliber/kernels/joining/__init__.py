"""Score fusion kernel: weighted sum of a search's partial scores per candidate, and the best candidates."""
