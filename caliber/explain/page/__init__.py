"""Page of a window: one HTML document without a network, its styles and its script inside."""
