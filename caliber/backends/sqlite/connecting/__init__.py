"""SQLite connections: opening, file checks, and survival of forks."""
