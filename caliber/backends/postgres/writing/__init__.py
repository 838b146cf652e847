"""PostgreSQL write path: transactions, commit order, change feed, and notifications to other processes."""
