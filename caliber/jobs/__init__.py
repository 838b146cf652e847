"""The durable queue: work behind calls, claimed with a lease and ended in the transaction of the work."""
