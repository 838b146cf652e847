"""Knowledge: notes that outlive tasks, their creation, merging, correction and summaries."""
