"""A tenant's schema as a whole: checked, backed up, restored, its erased bytes removed."""
