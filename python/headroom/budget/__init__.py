"""Shares a device's budget among steps in flight, and accounts for memory outside their graphs."""
