"""Context windows: candidates, ranking, filling, the window, its record, explanations and replays."""
