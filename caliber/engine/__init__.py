"""One open tenant: store, resident memory, clock, configuration, bus, and everything that works behind calls."""
