"""Rule-based natural language processing: sentences, summaries, extraction, names, dates, stems; no model."""
