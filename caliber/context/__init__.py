"""Assembly of context windows: candidates, ranking, budget, rendering, recording, explanation and replay."""
