"""Vector kernels: exact nearest-neighbour search, similarity scores and near-duplicate pairs."""
