"""Write transactions, and word of each commit to other processes."""
