"""Loading and reading whole relations: record batches in, record batches out, in one transaction, in bounded memory."""
