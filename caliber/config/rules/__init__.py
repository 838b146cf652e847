"""Rules between knobs that no single knob can check."""
