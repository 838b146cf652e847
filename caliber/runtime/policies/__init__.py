"""What happens by itself: at triggers and on schedules, how long records stay, and what waits for the next window."""
