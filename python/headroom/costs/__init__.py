"""The times and workspaces of calls."""
