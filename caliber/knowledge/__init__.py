"""Knowledge: notes and what is known about their use."""
