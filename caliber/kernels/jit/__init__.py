"""The loops over whole columns, compiled by Numba (extra ``jit``). Importing this package does not import Numba."""
