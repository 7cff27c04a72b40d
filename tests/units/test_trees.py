"""Models whose parameters are pytrees: dictionaries, registered classes with static parts, dataclasses."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import kalprox as kp
from kalprox import models
from kalprox.large import filter as structured_filter
from kalprox.models import TreeLayout

RNG = np.random.default_rng(3)


class Module:
    """A callable registered class, with a leaf that is a function, as modules of Equinox have."""

    def __init__(self, weights, bias, activation):
        self.weights, self.bias, self.activation = weights, bias, activation

    def __call__(self, x):
        return self.activation(self.weights @ x + self.bias)


jax.tree_util.register_pytree_node(
    Module, lambda m: ((m.weights, m.bias, m.activation), None), lambda _, leaves: Module(*leaves)
)


@dataclass
class Weights:
    """A dataclass with a part that belongs to the structure."""

    first: Any
    last: Any
    name: str


jax.tree_util.register_dataclass(Weights, data_fields=["first", "last"], meta_fields=["name"])


def trees(dtype):
    w, b, v = (RNG.normal(size=shape).astype(dtype) for shape in [(5, 3), (5,), (2, 5)])
    yield {"b": b, "w": w, "v": v}, lambda p, x: p["v"] @ jnp.tanh(p["w"] @ x + p["b"])
    yield [[w, b], (v,)], lambda p, x: p[1][0] @ jnp.tanh(p[0][0] @ x + p[0][1])
    yield {"net": Module(w, b, jnp.tanh), "v": v}, lambda p, x: p["v"] @ p["net"](x)
    yield Weights([w, b], v, "net"), lambda p, x: p.last @ jnp.tanh(p.first[0] @ x + p.first[1])
    yield (
        {"n": 3, "w": w, "b": b, "v": v, "order": np.array([1, 0])},
        (lambda p, x: (p["v"] @ jnp.tanh(p["w"] @ x + p["b"]))[p["order"]][np.array([1, 0])]),
    )


CASES = ["dictionary", "lists", "module", "dataclass", "whole numbers"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", range(5), ids=CASES)
def test_a_tree_is_the_flat_function_of_its_numbers(case, dtype):
    tree, fn = list(trees(dtype))[case]
    model, X = models.Function(fn, params=tree), RNG.normal(size=(7, 3)).astype(dtype)
    theta = model.flatten(tree)
    assert theta.dtype == dtype and type(theta) is np.ndarray and theta.shape == (30,)
    again = model.flatten(model.unflatten(theta))
    np.testing.assert_array_equal(again, theta)
    with jax.enable_x64(dtype == np.float64):
        h, D = model.linearize_rows(theta, X)
        values = [fn(tree, x) for x in X]
        outputs = jax.jit(jax.vmap(jax.vmap(lambda t, x: fn(model.unflatten(t), x), (None, 0)), (0, None)))
        steps = np.asarray(1e-2, dtype) * np.eye(30, dtype=dtype)
        central = np.moveaxis(outputs(theta + steps, X) - outputs(theta - steps, X), 0, -1) / np.asarray(0.02, dtype)
    assert h.dtype == dtype and D.dtype == dtype and D.shape == (7, 2, 30)
    np.testing.assert_allclose(h, values, rtol=0, atol=20 * np.finfo(dtype).eps)  # sums of terms of size 1
    np.testing.assert_allclose(D, central, atol=2e-3)  # the third derivatives are near 10


def test_the_order_of_the_numbers_is_that_of_ravel_pytree():
    tree, _ = next(trees(np.float32))
    on_device = jax.tree_util.tree_map(jnp.asarray, tree)
    model = models.Function(lambda p, x: x, params=tree)
    np.testing.assert_array_equal(model.flatten(tree), ravel_pytree(on_device)[0])
    assert isinstance(model.flatten(on_device), jax.Array)
    assert isinstance(model.unflatten(jnp.zeros(30))["w"], jax.Array)


def test_the_arrays_of_a_tree_follow_theta():
    tree = {"a": np.zeros(2, np.float32), "b": np.zeros(1, jnp.bfloat16)}
    model = models.Function(lambda p, x: x, params=tree)
    assert model.flatten(tree).dtype == np.float32
    assert model.unflatten(np.zeros(3))["b"].dtype == np.float64


def test_equal_structures_are_compiled_once():
    calls = []

    def fn(p, x):
        calls.append(isinstance(p["w"], jax.core.Tracer))
        return p["w"] @ x

    X = RNG.normal(size=(4, 20))
    for _ in range(3):
        model = models.Function(fn, params={"w": RNG.normal(size=20)})
        model.linearize_rows(RNG.normal(size=20), X)
        calls.append("next")
    first = calls.index("next")
    assert any(calls[:first]) and set(calls[first:]) == {"next"}
    assert TreeLayout.of({"w": np.ones(3)}) != TreeLayout.of({"w": np.ones(4)})
    assert TreeLayout.of([np.ones(3), jnp.tanh]) != TreeLayout.of([np.ones(3), jnp.sin])


def test_jacobians_in_chunks_are_those_of_all_rows(monkeypatch):
    tree, fn = next(trees(np.float64))
    X, model = RNG.normal(size=(33, 3)), models.Function(fn, params=tree)
    theta = model.flatten(tree)
    whole = model.linearize_rows(theta, X)
    monkeypatch.setattr(models, "_CHUNK", 5 * 2 * 30 * 8)  # five rows
    models._compiled_rows.cache_clear()
    try:
        with jax.enable_x64(True):
            program = jax.make_jaxpr(models._compiled_rows(), static_argnums=0)(model.flat_fn, theta, X)
        chunked = model.linearize_rows(theta, X)
    finally:
        models._compiled_rows.cache_clear()
    assert "scan" in str(program)
    for a, b in zip(whole, chunked, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-16)


def test_the_filter_learns_a_tree():
    tree = {"scale": np.array([1.0]), "rate": np.array([0.5])}
    model = models.Function(lambda p, x: (p["scale"] * jnp.exp(-p["rate"] * x))[0], params=tree)
    x = np.linspace(0.0, 3.0, 200)
    y = 2.0 * np.exp(-1.2 * x) + 0.01 * np.random.default_rng(0).normal(size=200)
    fit = kp.refine(model, kp.regularizers.Zero(), (x, y), model.flatten(tree))
    found = model.unflatten(fit.mean)
    assert abs(found["scale"][0] - 2.0) < 0.01 and abs(found["rate"][0] - 1.2) < 0.01


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": np.ones(2), "b": 1.0}, r"\['b'\].*not clear whether to learn it"),
        ({"a": np.ones(2, complex)}, "not clear"),
        ({"n": np.ones(2, int)}, "floating-point arrays"),
    ],
)
def test_trees_that_are_refused(tree, message):
    with pytest.raises(TypeError, match=message):
        models.Function(lambda p, x: x, params=tree)


def test_trees_of_another_structure_are_refused():
    model = models.Function(lambda p, x: p["a"] @ x, params={"a": np.ones(2)})
    with pytest.raises(ValueError, match=r"shapes \(2,\); got .*shapes \(3,\)"):
        model.flatten({"a": np.ones(3)})
    with pytest.raises(ValueError, match="vector of the 2 parameters"):
        model.unflatten(np.ones(3))
    with pytest.raises(TypeError, match="params=tree"):
        models.Function(lambda theta, x: x).flatten({"a": np.ones(2)})


def test_predictions_in_chunks_are_those_of_all_rows(monkeypatch):
    tree, fn = next(trees(np.float64))
    model, X = models.Function(fn, params=tree), RNG.normal(size=(150, 3))
    alg = kp.proximal_filter(model, kp.regularizers.Zero(), structure=kp.structures.LowRank(4))
    state = alg.step(alg.init(model.flatten(tree), 1.0), X[:20], RNG.normal(size=(20, 2)))
    whole = state.predict(X)
    assert whole.mean.shape == (150, 2)
    monkeypatch.setattr(structured_filter, "_BYTES", 7 * 2 * 30 * 8)  # seven rows
    parts = state.predict(X)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(parts.std, whole.std, rtol=1e-13)


def test_blocks_are_padded_to_few_lengths():
    assert [models.padded_length(b) for b in (1, 16, 17, 80)] == [16, 16, 32, 128]
    assert [models.padded_length(b, 10**6) for b in (1, 3, 8, 9, 80, 81)] == [1, 3, 8, 10, 80, 96]
    lengths = {models.padded_length(b, 10**6) for b in range(1, 1025)}
    assert len(lengths) < 45 and all(models.padded_length(b, 10**6) <= 1.25 * b for b in range(1, 1025))
