"""Filling of a window: the budget is shared between sections, or spent strictly by priority."""
