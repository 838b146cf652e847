"""Tasks that agents give to each other: delegations and handoffs."""
