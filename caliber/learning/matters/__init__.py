"""Rules of what people tell about themselves, by its matter: work, homes, families, health, tastes, plans."""
