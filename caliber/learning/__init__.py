"""Learning: facts and preferences about people, from the messages of a conversation."""
