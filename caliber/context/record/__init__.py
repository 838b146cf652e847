"""Record of a window, from which it is explained and replayed."""
