"""A file as a whole: checked, backed up, restored, its erased bytes removed."""
