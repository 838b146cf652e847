"""What enters of what may enter: the budget shared between sections, or spent strictly by priority."""
