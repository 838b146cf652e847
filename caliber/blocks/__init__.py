"""Memory blocks: labelled texts that stand in every window of their owner, edited by agents, users and the program."""
