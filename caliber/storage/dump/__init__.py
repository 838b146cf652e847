"""A whole store as one file: archives, Parquet."""
