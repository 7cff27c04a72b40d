"""Rows, files and fits that the tests of all engines share."""

from itertools import pairwise

import data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kalprox as kp
from kalprox.engines import ArrayPartition, EngineSource, partitions_of
from kalprox.information import Information
from kalprox.models import GLM, Function, Linear
from kalprox.regularizers import L1, Ridge
from kalprox.sources import fold_blocks
from kalprox.sources.columns import Columns
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.table import Table

COLUMNS = Columns(target="y", weight="w", numeric=("a", "b", "c"))
THETA = np.array([1.0, -0.5, 0.25])


def sample(seed=0, n=600):
    """X, y and weights; a line, a sigmoid and a polynomial all explain some of y, which lies around 0 to 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = 1 / (1 + np.exp(-(0.3 + X @ THETA))) + 0.1 * rng.normal(size=n)
    return X, y, rng.integers(0, 3, n).astype(float)


def class_sample(classes, n=900):
    """X, labels that are text for two classes and numbers for three, and whole weights."""
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(n, 3)) * [1.0, 2.0, 0.5] + [0.0, 5.0, -3.0]
    F = (X - [0.0, 5.0, -3.0]) @ rng.normal(size=(3, classes)) + rng.gumbel(size=(n, classes))
    labels = np.array(["no", "yes"], object) if classes == 2 else np.array([7, 3, 5])
    return X, labels[F.argmax(axis=1)], rng.integers(0, 3, n).astype(float)


CLASS_SETTINGS = {
    "plain": {},
    "balanced": {"class_weight": "balanced"},
    "l1": {"penalty": "l1", "alpha": 3.0},
    "weighted and robust": {"class_weight": {"yes": 2.0}, "coef_cov": "robust"},
}


def check_classifier(found, expected, rtol=1e-8):
    """Both models are the same: the classes, the coefficients, their standard errors, and the rows."""
    assert found.classes_.tolist() == expected.classes_.tolist()
    for name in ("coef_", "intercept_", "coef_std_"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * np.abs(theirs).max())
    assert found.n_rows_seen_ == expected.n_rows_seen_ and found.converged_


def cut(arrays, n, seed):
    """n + 3 partitions of random lengths, some of them empty and some of one row."""
    rng = np.random.default_rng(seed)
    rows = len(arrays[1])
    ends = [0, 0, 1, *np.sort(rng.integers(1, rows, n - 1)).tolist(), rows, rows]
    return [ArrayPartition(*(a[i:j] for a in arrays), f"rows {i} to {j}") for i, j in pairwise(ends)]


def polynomial():
    """A model that JAX compiles."""
    return Function(lambda theta, x: theta[0] * x[0] + theta[1] * x[1] ** 2 + theta[2] ** 3)


KINDS = {
    "ridge": (Linear, Ridge(3.0)),
    "l1": (Linear, L1(25.0)),
    "sigmoid": (lambda: GLM("sigmoid"), Ridge(0.5)),
    "function": (polynomial, Ridge(0.1)),
}


def fitted(kind, source):
    """Everything that a refinement says, as one array."""
    model, regularizer = KINDS[kind]
    found = kp.refine(model(), regularizer, source, np.array([0.1, 0.1, 0.5]))
    assert found.converged
    return np.concatenate([found.mean, found.cov.ravel(), [found.noise_var, found.objective, found.dof]])


def check_equal(engine, kind, n, seed):
    """The fit of n partitions on an engine is that of the arrays in memory."""
    arrays = sample(seed)
    found = fitted(kind, EngineSource(engine, cut(arrays, n, seed)))
    np.testing.assert_allclose(found, fitted(kind, arrays), rtol=1e-10, atol=1e-13)


def table(n=100, seed=1):
    X, y, w = sample(seed, n)
    return pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "w": w})


def write(folder, tables, groups=10):
    """One Parquet file per table; returns their names in order."""
    names = []
    for i, one in enumerate(tables):
        names.append(str(folder / f"{i:03}.parquet"))
        pq.write_table(one, names[-1], row_group_size=groups)
    return names


def with_bad_rows(one, at):
    """The table with infinity and NaN, in turn, in the rows `at`."""
    a = one.column("a").to_numpy().copy()
    a[at] = np.where(np.arange(len(at)) % 2, np.nan, np.inf)
    return one.set_column(0, "a", pa.array(a))


def information(source):
    """The information of all rows of a source."""
    return source.fold(Information.from_block).total


def bits(information):
    return information.T.tobytes(), information.shift.tobytes(), float(information.rows)


FLIGHTS = Columns(
    target="arr_delay",
    numeric=("dep_delay", "distance", "hour"),
    categorical={"origin": ("EWR", "JFK", "LGA"), "carrier": ("9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN")},
    drop_first=True,
)


def check_flights(engine, folder):
    """Flights of two months, in 48 files: the information, the counts and the quarantine of one machine."""
    names = [FLIGHTS.target, *FLIGHTS.numeric, *FLIGHTS.categorical]
    flights = pa.Table.from_pandas(data.flights(56_000)[names], preserve_index=False)
    files = folder / "in"
    files.mkdir()
    ends = np.linspace(0, len(flights), 49).astype(int)
    write(files, [flights.slice(i, j - i) for i, j in pairwise(ends)], 400)
    one, many = (Quarantine(folder / name) for name in ("one.csv", "many.csv"))

    def blocks():
        for block in Table(str(files), FLIGHTS).blocks():
            one.take(block.bad, block.read)
            yield block

    alone = fold_blocks(blocks(), Information.from_block)
    one.finish()
    source = EngineSource(engine, partitions_of(str(files), FLIGHTS), quarantine=many)
    found = source.fold(Information.from_block)
    many.finish()
    assert len(source.partitions) == 48
    assert found.counts == alone.counts and found.counts.read == len(flights) > 50_000 and found.counts.bad > 500
    here, there = (total.with_intercept() for total in (alone.total, found.total))
    np.testing.assert_allclose(there.solve(), here.solve(), rtol=1e-10)
    np.testing.assert_allclose(there.precision(), here.precision(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(there.rss, here.rss, rtol=1e-10)
    assert (folder / "many.csv").read_bytes() == (folder / "one.csv").read_bytes()
