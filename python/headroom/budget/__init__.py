"""How steps share a device's budget, and what lies outside of their graphs."""
