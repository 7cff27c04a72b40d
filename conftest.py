"""Strict promotion: a silent broadcast or a silent cast between dtypes is an error in the tests.

Hypothesis draws the same examples in every run: a red test is a change, not the weather.
"""

import os

import jax
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips its check of array inputs
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
