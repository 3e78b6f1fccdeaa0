"""Steps with Inductor's kernels: planned, compiled, tried, and replanned."""
