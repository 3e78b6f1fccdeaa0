"""Measures the times and workspaces of calls."""
