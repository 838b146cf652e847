"""Generated documentation of a configuration: explanation of each knob, and commented or short files."""
