"""How a planned step runs."""
