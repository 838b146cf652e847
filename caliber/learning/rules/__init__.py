"""Rules that read facts and preferences from a user's message, without a language model. English only."""
