"""The process around a call: exceptions of signal handlers, and locks in forked children."""
