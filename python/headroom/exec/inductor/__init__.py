"""Steps that run Inductor's kernels: partitioned by a plan, compiled, tried, and planned again."""
