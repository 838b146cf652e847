"""Configuration of access: who sees and changes records."""
