"""Language without a model: sentences, summaries by rule, names, days, stems."""
