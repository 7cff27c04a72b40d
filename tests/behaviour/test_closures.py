"""`jax.jit` over a parameter of an algorithm, with the state and the rows closed over as NumPy or JAX arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kalprox as kp
from kalprox.regularizers import Quadratic, Ridge

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=20)
H = kp.models.Linear()
ALGORITHMS = {
    "pipg": lambda p: kp.pipg(H, Ridge(p), gamma=p, q=p),
    "ipm": lambda p: kp.ipm(H, gamma=p),
    "ipg": lambda p: kp.ipg(H, Ridge(p), gamma=p),
    "sgd": lambda p: kp.sgd(H, Ridge(p), alpha0=p, alpha1=p),
    "proximal filter": lambda p: kp.proximal_filter(H, Ridge(p), gamma=p, forget=p),
    "learned noise": lambda p: kp.proximal_filter(H, Quadratic(p * np.eye(3, dtype=p.dtype)), gamma=None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("library", "x64"), [(np, False), (jnp, True)], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_compiles_over_a_parameter(name, library, x64):
    make = ALGORITHMS[name]
    with jax.enable_x64(x64):
        # Without x64, JAX has float32 only; a NumPy array that is closed over may still be float64.
        dtype = np.float32 if library is jnp and not x64 else np.float64
        p = jnp.asarray(0.3)
        alg = make(np.asarray(0.3, np.float64))
        state = alg.init(library.zeros(3, dtype=dtype), 0.5)
        rows = (library.asarray(X, dtype=dtype), library.asarray(Y, dtype=dtype))
        rows = rows if alg.by_block else (rows[0][0], rows[1][0])

        def read(p):
            after = make(p).step(state, *rows)
            return (after.mean, after.cov(), after.var()) if hasattr(after, "cov") else (after.mean,)

        compiled, plain = jax.jit(read)(p), read(np.asarray(p))
        batched = jax.jit(jax.vmap(read))(jnp.stack([p, p]))
        for a, b, c in zip(compiled, plain, batched, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10 if x64 else 1e-4)
            np.testing.assert_allclose(c[1], a, rtol=1e-10 if x64 else 1e-4)
