"""The manual of a configuration: the meaning of each knob, its origin, its readers, and files to edit."""
