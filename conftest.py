"""Strict promotion: a silent broadcast or a silent cast between dtypes is an error in the tests."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
