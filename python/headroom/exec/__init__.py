"""Backends that execute a planned step."""
