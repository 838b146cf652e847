"""Relations as data: what is durable, declared once."""
