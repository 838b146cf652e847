"""Numba-compiled loops over whole columns (extra ``jit``). Importing this package does not import Numba."""
