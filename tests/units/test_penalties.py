"""Penalties by name: the regulariser of each, the grid of alphas, and what is refused."""

import dataclasses

import numpy as np
import pytest
from data import linear

from kalprox import KalproxRegressor, penalties, regularizers
from kalprox.penalties import PENALTIES, check_alpha, penalty_of
from kalprox.solvers.prox import prox

GIVEN = {name: kind() for name, kind in PENALTIES.items()} | {
    "elasticnet": penalties.ElasticNet(0.8),
    "smooth_l1": penalties.SmoothL1(1e-3),
    "group": penalties.Group([0, 0, 1, 1, 2]),
    "box": penalties.Box(-1, [1, 2, 3, 4, 5]),
}


def data():
    X, y = linear(50, 5)
    Q, R = np.linalg.qr(X)
    return R, Q.T @ y


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_says_what_is_needed_of_it(name):
    penalty = GIVEN[name]
    assert penalty_of(penalty) is penalty and type(penalty_of(name)) is type(penalty) and penalty.name == name
    assert penalty.help.endswith(".") and "\n" not in penalty.help
    assert penalty.has_weight == (penalty.selection is not None)
    g = penalty.regularizer(2.0)
    assert np.isfinite(g.value(np.full(5, 0.5)))
    if penalty.has_weight:
        np.testing.assert_allclose(penalty.regularizer(6.0).value(np.ones(5)), 3 * g.value(np.ones(5)), rtol=1e-15)
    for field in dataclasses.fields(penalty):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(penalty, field.name, 1.0)


def test_no_penalty_and_a_regulariser_object():
    g = regularizers.Cauchy(1.0, 2.0)
    none, given = penalty_of(None), penalty_of(g)
    assert none.name == "none" and isinstance(none.regularizer(1.0), regularizers.Zero)
    assert given.name == "own" and given.regularizer(1.0) is g
    assert not (none.has_weight or given.has_weight or none.selection or given.selection or given.follows_l1_path)


def test_evidence_is_for_ridge_and_the_path_for_l1():
    assert [name for name, p in PENALTIES.items() if p.selection == "evidence"] == ["ridge"]
    assert [name for name, p in PENALTIES.items() if p.follows_l1_path] == ["l1"]


@pytest.mark.parametrize("name", [name for name, p in PENALTIES.items() if p.has_weight])
def test_the_grid_of_alphas_starts_where_the_penalty_leaves_next_to_nothing(name):
    R, z = data()
    penalty = GIVEN[name]
    alphas = penalty.alphas(R, z)
    assert (np.diff(alphas) < 0).all() and alphas[-1] > 0
    np.testing.assert_array_equal(alphas, penalty.alphas(R, z[:, None]))
    first, later = (prox(R, z, penalty.regularizer(a)).theta for a in (alphas[0], alphas[0] / 1.2))
    fit = np.linalg.norm(np.linalg.solve(R, z))
    assert np.linalg.norm(first) < 0.01 * fit
    if name in ("l1", "elasticnet", "group"):
        assert not first.any() and later.any()
    assert np.linalg.norm(prox(R, z, penalty.regularizer(alphas[-1])).theta) > 0.9 * fit
    assert (penalty.alphas(0 * R, 0 * z) > 0).all()


@pytest.mark.parametrize(
    ("penalty", "alpha", "message"),
    [
        ("lasso", 1.0, "penalty must be None, one of ridge, l1, .*, box, an object of kalprox.penalties, or a Reg"),
        (["ridge"], 1.0, "penalty must be None"),
        ("ridge", -1.0, "alpha must be finite and >= 0"),
        ("ridge", "best", "alpha must be a number >= 0 or 'auto'; got 'best'"),
        (regularizers.L1(1.0), 2.0, "alpha must be 1 if penalty is a Regularizer.*and L1"),
    ],
)
def test_what_is_refused(penalty, alpha, message):
    with pytest.raises(ValueError, match=message):
        check_alpha(alpha, penalty_of(penalty))


def test_parameters_of_penalties_are_checked():
    with pytest.raises(ValueError, match=r"l1_ratio must lie between 0 and 1; got 1.5"):
        penalties.ElasticNet(1.5)
    with pytest.raises(ValueError, match="delta must be"):
        penalties.SmoothL1(0.0)
    with pytest.raises(ValueError, match="penalty='group' needs to know the groups"):
        penalties.Group().regularizer(1.0)


@pytest.mark.parametrize("name", PENALTIES)
def test_an_intercept_left_free_is_the_same_as_centred_columns(name):
    X, y = linear(50, 5)
    X, y = X + np.array([1.0, -2.0, 0.5, 0.0, 3.0]), y + 4.0
    g = GIVEN[name].regularizer(5.0)
    whole = prox(np.column_stack([np.ones(50), X]), y, g.with_free_intercept(5))
    centred = prox(X - X.mean(axis=0), y - y.mean(), g)
    assert whole.converged and centred.converged
    np.testing.assert_allclose(whole.theta[1:], centred.theta, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(whole.theta[0], y.mean() - X.mean(axis=0) @ centred.theta, rtol=1e-9)


@pytest.mark.parametrize("penalty", [penalties.Box(-0.5, 1.7), regularizers.Box(-0.5, 1.7)])
@pytest.mark.parametrize("link", ["identity", "tanh"])
def test_bounds_are_those_of_coef_whatever_the_scale_of_the_columns(penalty, link):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) * [0.2, 7.0, 0.03]
    y = X @ [3.0, 0.01, -4.0]
    y = np.tanh(y) if link == "tanh" else y
    plain, scaled = (KalproxRegressor(link=link, standardize=s, penalty=penalty).fit(X, y).coef_ for s in (False, True))
    np.testing.assert_array_equal(scaled, plain)
    assert scaled.max() == 1.7 and scaled.min() == -0.5
