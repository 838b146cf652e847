"""Export of a whole store to files: Parquet per relation, and archives for backups."""
