"""From git histories, conversations and files to turns, notes and artifacts; the same source twice adds nothing."""
