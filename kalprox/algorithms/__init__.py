"""The algorithms: the paper's recursion, its baselines, the proximal filter, refinement, and the driver `run`."""
