"""The algorithms: the paper's recursion, its baselines, the proximal filter, refinement, and the driver `run`."""

import sys

from kalprox._memory import check_room

if "jax" not in sys.modules:  # where its library finds no addresses, the loader of the system ends the process
    check_room(384 << 20, "JAX, which this model needs,")
