"""Access: principals, what they may see and what they may change."""
