"""Lines that objects print as; they are loaded when something prints."""
