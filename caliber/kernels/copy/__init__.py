"""Rows between Arrow's buffers and PostgreSQL's binary COPY: the kernel and its twin."""
