"""Filling of a window's token budget: shared between sections by value, or strictly by section priority."""
