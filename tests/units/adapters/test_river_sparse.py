"""Models for River with a structure: hashed rows that stay sparse."""

import copy
import math
import pickle
import time
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from river import compose

from kalprox import KalproxRegressor
from kalprox.adapters.river import RiverClassifier, RiverRegressor
from kalprox.adapters.streams import HashedColumns
from kalprox.sources.labels import level_hash
from kalprox.structures import Blocks, LowRank


def mixed_rows(n=80, seed=0):
    """Rows with a text, a number and one that is not in every row, and their targets."""
    rng = np.random.default_rng(seed)
    rows = [{"id": f"n{rng.integers(17)}", "x": float(rng.normal())} for _ in range(n)]
    rows = [row | ({"late": 1.0} if i > 30 and i % 3 else {}) for i, row in enumerate(rows)]
    return rows, [3.0 * row["x"] + len(row) + float(rng.normal()) for row in rows]


def signed(rows, bits):
    """The rows as a dense matrix, key by key."""
    X = np.zeros((len(rows), 2**bits))
    for i, row in enumerate(rows):
        for name, value in row.items():
            found = level_hash(f"{name}={value}" if isinstance(value, str) else name)
            X[i, found % 2**bits] += (-1.0 if found >> 47 else 1.0) * (1.0 if isinstance(value, str) else value)
    return X


def taught(model, rows, y):
    for row, target in zip(rows, y, strict=True):
        model.learn_one(row, target)
    return model


@pytest.mark.parametrize("structure", [LowRank(16), Blocks([16])], ids=["LowRank", "Blocks"])
@pytest.mark.parametrize("noise", ["learn", 0.5])
def test_a_structure_that_keeps_all_equals_none(structure, noise):
    """At the rank of all columns, and with one block of them, the mean and the std are those of the dense matrix."""
    rows, y = mixed_rows()
    about = {"hash_bits": 4, "fit_intercept": False, "noise": noise, "alpha": 0.7}
    dense, sparse = RiverRegressor(**about), RiverRegressor(**about, structure=structure)
    for row, target in zip(rows, y, strict=True):
        dense.learn_one(row, target)
        sparse.learn_one(row, target)
    for row in [*rows[:5], {"new": 2.0, "id": "zz"}, {}]:
        expected, found = dense.predict_one(row, with_dist=True), sparse.predict_one(row, with_dist=True)
        assert found.mu == pytest.approx(expected.mu, rel=1e-9, abs=1e-10)
        assert sparse.predict_one(row) == pytest.approx(expected.mu, rel=1e-9, abs=1e-10)
        if noise != "learn":
            assert found.sigma == pytest.approx(expected.sigma, rel=1e-9)
    # The noise variance is learned in another way: from all rows, with what the penalty adds to their squared errors.
    X = signed(rows, 4)
    P = X.T @ X + 0.7 * np.eye(16)
    m = np.linalg.solve(P, X.T @ y)
    variance = noise if noise != "learn" else (((y - X @ m) ** 2).sum() + 0.7 * m @ m) / len(y)
    for x, row in zip(X, rows, strict=True):
        std = math.sqrt(variance * (1 + x @ np.linalg.solve(P, x)))
        assert sparse.predict_one(row, with_dist=True).scale == pytest.approx(std, rel=1e-9)


def test_an_intercept_equals_none_up_to_its_weak_prior():
    rows, y = mixed_rows()
    sparse = taught(RiverRegressor(hash_bits=4, noise=1.0, structure=LowRank(17)), rows, y)
    dense = taught(RiverRegressor(hash_bits=4, noise=1.0), rows, y)
    for row in rows[:5]:
        expected, found = dense.predict_one(row, with_dist=True), sparse.predict_one(row, with_dist=True)
        assert (found.mu, found.sigma) == pytest.approx((expected.mu, expected.sigma), rel=1e-5)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", ["frequency", "precision"])
def test_a_diagonal_equals_the_recursion(intercept, weights):
    rows, y = mixed_rows()
    w = np.where(np.arange(len(y)) % 4 == 0, 2.5, 1.0)
    model = RiverRegressor(
        hash_bits=4, structure="diagonal", fit_intercept=intercept, weight_kind=weights, alpha=0.5, penalty="ridge"
    )
    X = signed(rows, 4)
    m, p = np.zeros(16), np.full(16, 0.5)
    if intercept:
        X, m, p = np.column_stack([np.ones(len(y)), X]), np.append(y[0], m), np.append(1e-5, p)
    rss = count = seen = dropped = 0.0
    prior = p
    for i, row in enumerate(rows):
        x = X[i]
        if i > intercept:
            dof = count - intercept  # the first row is the mean of the intercept's prior
            found = model.predict_one(row, with_dist=True)
            std = math.sqrt(rss / dof * (1 + x @ (x / p)))
            assert (found.mu, found.scale) == pytest.approx((x @ m, std), rel=1e-10, abs=1e-12)
            assert found.dof == pytest.approx((15 / 64 if dropped > 1e-3 * seen else 1) * dof)
            assert model.predict_one(row) == pytest.approx(x @ m, rel=1e-10)
        model.learn_one(row, y[i], w[i])
        e, s = y[i] - x @ m, 1 / w[i] + x @ (x / p)
        new = w[i] if weights == "frequency" else 1.0
        left = count / (count + new)
        late = left**7 * rss + (1 - left**8) * (count + new) * e**2 / s / new  # once correlations were dropped
        rss, count = late if dropped > 1e-3 * seen else rss + e**2 / s, count + new
        shares, trace = x**2 / p, w[i] * x**2 @ (1 / np.maximum(prior, prior.mean()))
        seen, dropped = seen + trace, dropped + trace * (1 - shares @ shares / shares.sum() ** 2)
        m, p = m + (x / p) * e / s, p + w[i] * x**2
    found = model.to_estimator()
    np.testing.assert_allclose(found.coef_, m[int(intercept) :], rtol=1e-9, atol=1e-12)
    std = np.sqrt(rss / (count - intercept) / p[int(intercept) :])
    with pytest.warns(UserWarning, match=r"may be too small"):
        np.testing.assert_allclose(found.coef_std_, std, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning")
def test_batches_equal_the_estimator():
    """Those of a diagonal are learned one by one, and others together."""
    rows, y = mixed_rows(60)
    frame, X = pd.DataFrame(rows).fillna({"late": 0.0}), signed(rows, 10)
    for structure in ("diagonal", LowRank(6)):
        model = RiverRegressor(hash_bits=10, structure=structure)
        model.learn_many(frame[:10], pd.Series(y[:10]))
        model.learn_many(pl.from_pandas(frame[10:]), pl.Series(y[10:]))
        dense, S = KalproxRegressor(structure=structure, diagnose=False, penalty="ridge"), scipy.sparse.csr_array(X)
        ends = range(61) if structure == "diagonal" else (0, 10, 60)
        for start, stop in pairwise(ends):
            dense.partial_fit(S[start:stop], y[start:stop])
        mean, std = dense.predict(S, return_std=True)
        np.testing.assert_allclose(model.predict_many(frame), mean, rtol=1e-9)
        assert isinstance(model.predict_many(pl.from_pandas(frame)), pl.Series)
        for i in (0, 40, 59):
            found = model.predict_one(rows[i], with_dist=True)
            assert (found.mu, found.scale) == pytest.approx((mean[i], std[i]), rel=1e-9)
        assert model.predict_many(frame[:0]).empty


def test_features_that_share_a_column_add_up():
    columns = HashedColumns(1, sparse=True)
    by_place = {}
    for i in range(40):
        by_place.setdefault(columns.space.place(f"word={i}"), []).append(str(i))
    at, sign = 0, 1.0
    first, second, apart = *by_place[at, sign][:2], by_place[at, -sign][0]
    row = columns.fill({"word": first, "word=" + second: 2.0})  # a number counts under its name
    assert row.nnz == 1 and row.indices[0] == at and row.data[0] == 3 * sign
    assert columns.fill({"word": first, "word=" + apart: 1.0}).toarray()[0, at] == 0.0
    frame = pd.DataFrame({"word": [first, apart], "word=" + second: [2.0, 1.0]})  # the signs of the last row differ
    X = columns.matrix(list(frame.columns), [np.asarray(frame[name]) for name in frame])
    np.testing.assert_array_equal(X.toarray()[:, at], [3 * sign, 0.0])
    model = RiverRegressor(hash_bits=1, structure="diagonal", fit_intercept=False, alpha=1.0, noise=1.0)
    model.learn_one({"word": first, "word=" + second: 2.0}, 4.0)
    found = model.predict_one({"word": first, "word=" + second: 2.0}, with_dist=True)
    assert found.mu == pytest.approx(9 * 4 / 10) and found.sigma**2 == pytest.approx(1 + 9 / 10)  # one feature of 3


def test_a_frame_is_read_as_its_rows_are():
    """Columns of objects hold texts and numbers; the dense space and the sparse one take both alike."""
    rows = [{"a": "x", "b": 1}, {"a": 2, "b": 3}, {"a": "2", "b": True}]
    frame = pd.DataFrame(rows).astype(object)
    for sparse in (False, True):
        columns = HashedColumns(8, sparse=sparse)
        X = columns.matrix(["a", "b"], [np.asarray(frame[name]) for name in frame])
        expected = [columns.fill(row).copy() for row in rows]
        for i, row in enumerate(expected):
            np.testing.assert_array_equal(X.toarray()[i] if sparse else X[i], (row.toarray() if sparse else row)[0])


def zipf_texts(n, seed=0):
    """Counts of 30 words of 20,000, some of them frequent, and targets: sums of weights of the words, and noise."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, 20_001)
    weights = rng.normal(size=20_000)
    words = rng.choice(20_000, size=(n, 30), p=p / p.sum())
    y = weights[words].sum(axis=1) + rng.normal(size=n)
    return [{f"w{i}": float(k) for i, k in Counter(text).items()} for text in words.tolist()], y


@pytest.mark.slow
def test_many_words_take_little_memory_and_are_learned():
    """2,000 dense rows of 2^18 columns would take 4 GiB, and the information 512 GiB.

    Ridge regression on all rows before each hundred explains half of the variance, the first use of a word included.
    """
    rows, y = zipf_texts(2000)
    model = RiverRegressor(hash_bits=18, structure="diagonal", alpha=3.0)
    tracemalloc.start()
    for row, target in zip(rows[:1000], y[:1000], strict=True):
        model.learn_one(row, target)
    found = []
    for row, target in zip(rows[1000:], y[1000:], strict=True):
        found.append(model.predict_one(row, with_dist=True))
        model.learn_one(row, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 * 2**20  # some twenty vectors of 2^18 numbers
    errors = y[1000:] - [one.mu for one in found]
    assert 1 - (errors**2).mean() / y[1000:].var() > 0.3
    assert 0.9 < (errors / [one.sigma for one in found]).std() < 1.15


@pytest.mark.slow
def test_a_single_row_takes_as_long_whatever_the_number_of_columns():
    """A row of 2^20 columns is learned and predicted in less time than one copy of what is known about them takes."""
    rows, y = zipf_texts(150)
    model = taught(RiverRegressor(hash_bits=20, structure="diagonal"), rows[:100], y[:100])
    times = []
    for row, target in zip(rows[100:], y[100:], strict=True):
        start = time.perf_counter()
        model.learn_one(row, target)
        model.predict_one(row, with_dist=True)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    model._learner.copy()  # the arrays of the filter
    copying = time.perf_counter() - start
    assert np.median(times) < copying


@pytest.mark.parametrize("structure", ["diagonal", LowRank(3)], ids=["diagonal", "LowRank"])
def test_copies_go_on_as_the_model_does(structure):
    rows, y = mixed_rows(60)
    model = taught(RiverRegressor(hash_bits=6, structure=structure), rows[:30], y[:30])
    before = model.predict_one(rows[0], with_dist=True)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    estimator = model.to_estimator()
    taught(model, rows[30:], y[30:])
    for one in copies:
        assert one.predict_one(rows[0]) == before.mu  # what the model learned later has not changed it
        taught(one, rows[30:], y[30:])
        assert one.predict_one(rows[0]) == model.predict_one(rows[0])
        assert one.predict_one(rows[0], with_dist=True).sigma == model.predict_one(rows[0], with_dist=True).sigma
    assert estimator.n_rows_seen_ == 30 and model.to_estimator().n_rows_seen_ == 60
    frame = pd.DataFrame(signed(rows[:1], 6), columns=estimator.feature_names_in_)
    assert estimator.predict(frame)[0] == pytest.approx(before.mu, rel=1e-10)
    fresh = model.clone()
    assert fresh.structure == structure and fresh.predict_one(rows[0]) == 0.0
    taught(fresh, rows, y)
    assert fresh.predict_one(rows[0]) == pytest.approx(model.predict_one(rows[0]), rel=1e-10)


def test_rows_of_all_kinds_after_each_other_are_one_stream():
    """Single rows, batches and rows with weights leave a diagonal that is the sum of all squares."""
    rows, y = mixed_rows(50)
    model = RiverRegressor(hash_bits=6, structure="diagonal", noise=1.0, fit_intercept=False)
    taught(model, rows[:20], y[:20])
    model.learn_many(pd.DataFrame(rows[20:30]).fillna({"late": 0.0}), pd.Series(y[20:30]))
    taught(model, rows[30:40], y[30:40])
    for row, target in zip(rows[40:], y[40:], strict=True):
        model.learn_one(row, target, w=2.0)
    X = signed(rows, 6)
    p = 1 + (X[:40] ** 2).sum(axis=0) + 2 * (X[40:] ** 2).sum(axis=0)
    found = model.to_estimator()
    assert found.n_rows_seen_ == 50
    with pytest.warns(UserWarning, match=r"may be too small"):
        np.testing.assert_allclose(found.coef_std_, 1 / np.sqrt(p), rtol=1e-12)
    w = np.where(np.arange(50) < 40, 1.0, 2.0)
    mean = w @ X / w.sum()
    np.testing.assert_allclose(
        found._fitted.belief.facts.column_std, np.sqrt(w @ (X - mean) ** 2 / w.sum()), rtol=1e-9, atol=1e-12
    )


def test_a_diagnosed_stream_learns_the_same():
    rows, y = mixed_rows(60)
    about = {"hash_bits": 6, "structure": "diagonal", "noise": 1.0}
    plain, diagnosed = (taught(RiverRegressor(**about, diagnose=one), rows, y) for one in (False, True))
    for row in rows[:5]:
        assert diagnosed.predict_one(row) == pytest.approx(plain.predict_one(row), rel=1e-10)
    assert diagnosed.to_estimator().diagnostics_.rows > 50


def test_pipelines_and_empty_rows():
    model = (
        compose.Select("text") | compose.FuncTransformer(_words) | RiverRegressor(hash_bits=16, structure="diagonal")
    )
    for text, y in [("good fine", 1.0), ("bad", -1.0), ("", 0.0), ("fine fine", 1.0)] * 20:
        model.learn_one({"text": text}, y)
    assert model.predict_one({"text": "fine"}) > 0.2 > model.predict_one({"text": "bad"})
    assert abs(model.predict_one({"text": ""})) < 0.3


def _words(x):
    return dict.fromkeys(x["text"].split(), 1.0)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"at most 12; got 13.*structure='diagonal'.* up to 20"):
        RiverRegressor(hash_bits=13).learn_one({"a": 1.0}, 1.0)
    with pytest.raises(ValueError, match=r"at most 20, which are 1,048,576 columns; got 21"):
        RiverRegressor(hash_bits=21, structure="diagonal").learn_one({"a": 1.0}, 1.0)
    for kind, y in ((RiverRegressor, 1.0), (RiverClassifier, True)):
        with pytest.raises(ValueError, match=r"without hash_bits needs structure=None.*Set hash_bits=18"):
            kind(structure="diagonal").learn_one({"a": 1.0}, y)
    for about, text in (
        ({"structure": "diag"}, "structure must be 'dense', 'diagonal', 'low_rank', or one of"),
        ({"penalty": "l1"}, "penalty='ridge' or None"),
        ({"forget": 0.9}, "forget=1"),
        ({"alpha": "auto"}, "needs a number as alpha, because"),
    ):
        with pytest.raises(ValueError, match=text):
            RiverRegressor(**{"hash_bits": 4, "structure": "diagonal"} | about).learn_one({"a": 1.0}, 1.0)
    with pytest.raises(ValueError, match=r"a target of several classes. Use river.multiclass.OneVsRest"):
        RiverClassifier(hash_bits=4, structure="diagonal", classes=("a", "b", "c")).learn_one({"a": 1.0}, "a")
    assert RiverRegressor(hash_bits=4, structure="dense").learn_one({"a": 1.0}, 1.0) is None


@pytest.mark.parametrize("structure", ["diagonal", LowRank(3)], ids=["diagonal", "LowRank"])
def test_bad_rows_change_nothing(structure):
    model = RiverRegressor(hash_bits=4, structure=structure)
    model.learn_one({"a": 1.0}, 1.0)
    model.learn_one({"a": 2.0, "b": 1.0}, 2.5)
    before = model.predict_one({"a": 2.0}, with_dist=True)
    for x, y in (({"a": math.nan}, 1.0), ({"a": None}, 1.0), ({"a": 1e99}, 1.0), ({"a": 1.0, "b": math.inf}, 1.0)):
        for w in (1.0, 2.0):
            with pytest.raises(ValueError, match=r"A row is bad and was not learned: feature '[ab]' is"):
                model.learn_one(x, y, w)
    with pytest.raises(ValueError, match=r"the target is nan"):
        model.learn_one({"a": 1.0}, math.nan)
    with pytest.raises(ValueError, match=r"the weight is -1"):
        model.learn_one({"a": 1.0}, 1.0, w=-1)
    for value in (math.nan, 1e99):
        with pytest.raises(ValueError, match=r"X must be finite|must be at most 1e\+70"):
            model.learn_many(pd.DataFrame({"a": [1.0, value]}), pd.Series([1.0, 2.0]))
    for predict in (model.predict_one, lambda x: model.predict_many(pd.DataFrame([x]))):
        with pytest.raises(ValueError, match=r"A row cannot be predicted: feature 'a' is nan"):
            predict({"a": math.nan})
    model.learn_one({"a": 5.0}, 7.0, w=0.0)
    after = model.predict_one({"a": 2.0}, with_dist=True)
    assert (after.mu, after.sigma) == (before.mu, before.sigma)
    skipping = RiverRegressor(hash_bits=4, structure=structure, missing="drop")
    skipping.learn_many(pd.DataFrame({"a": [math.nan, 1.0, 2.0]}), pd.Series([1.0, 2.0, math.nan]))
    assert skipping.n_rows_rejected == 2 and skipping.to_estimator().n_rows_seen_ == 1
