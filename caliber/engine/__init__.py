"""Engine of one open tenant: store, resident memory, clock, configuration, event bus and background threads."""
