"""The commands of db: looking after the store."""
