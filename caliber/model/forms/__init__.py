"""Forms of messages that providers of language models take."""
