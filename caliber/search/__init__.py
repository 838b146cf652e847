"""Search over resident memory."""
