"""Word lists of everyday facts, and the checks of values that are made of them."""
