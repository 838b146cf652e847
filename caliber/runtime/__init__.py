"""The orchestrator: one open tenant, and what works behind it."""
