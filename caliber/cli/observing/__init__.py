"""Commands that show a store at work: the story of a task, and live figures."""
