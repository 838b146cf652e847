"""What may enter a window: the conversation, what a search finds, and what rules take."""
