"""Bulk load and bulk read of whole relations as Arrow record batches, in one transaction and bounded memory."""
