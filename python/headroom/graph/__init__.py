"""Captures the joint graph of a step as storages and calls, rewrites it, and decides what may be rerun."""
