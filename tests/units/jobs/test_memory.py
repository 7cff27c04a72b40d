"""The d x d matrices of wide models: said before the work begins, freed without the garbage collector, and few."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from kalprox.base import memory as machine
from kalprox.jobs import model as memory
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import MATRICES, check_memory
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.likelihoods import Gaussian
from kalprox.sources import Block
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table
from kalprox.structures import LowRank


@pytest.fixture
def _without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def blocks(d, rows, n, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        X = rng.normal(size=(rows, d))
        yield Block(X, X[:, 0] + rng.normal(size=rows))


def test_what_does_not_fit_is_said_with_numbers(monkeypatch):
    check_memory(1000, 1 << 28)
    with pytest.warns(
        RuntimeWarning, match=r"2,000 columns need about 488 MB .*\(16 of 30\.5 MB\); the 16 MB of --memory"
    ):
        check_memory(2000, 1 << 24)
    monkeypatch.setattr(memory, "memory_of_machine", lambda: 1 << 33)
    with pytest.raises(
        MemoryError,
        match=r"10,000 columns need .* this machine has 8 GB\. Fewer columns.*structure='diagonal'",
    ):
        check_memory(10_000, 1 << 24)
    check_memory(10_000, 1 << 28, LowRank(20))
    with pytest.raises(MemoryError, match=r"5,000,000 columns need about 12\.5 GB .* for vectors .* a lower rank"):
        check_memory(5_000_000, 1 << 28, LowRank(20))


def test_the_memory_of_a_container_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_LIMIT", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_of_machine() > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    assert machine.memory_of_machine() == 1_000_000


def test_100_000_levels_are_refused_before_a_row_is_read(tmp_path):
    (file := tmp_path / "a.csv").write_text("y,c\n1,0\n")
    columns = Columns("y", categorical={"c": tuple(map(str, range(100_000)))})
    with pytest.raises(MemoryError, match=r"100,000 columns need about 1\.16 TB"):
        FitJob(Table([file], columns), {}, quarantine=tmp_path / "bad.csv").run(tmp_path / "m.kalprox")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.slow
@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"penalty": None},
        {"penalty": "l1", "alpha": 20.0},
        {"penalty": "box"},
        {"standardize": True},
        {"alpha": "auto"},
    ],
    ids=str,
)
def test_memory_neither_grows_nor_needs_the_collector(settings):
    d, unit = 120, 8 * 120**2
    learner = Learner(Settings.of(**settings))
    for block in blocks(d, 40, 6):
        learner.learn(block, call=Call(in_turn=True))  # imports what is needed
    learner = Learner(Settings.of(**settings))
    tracemalloc.start()
    try:
        held, peaks = [], []
        for block in blocks(d, 40, 12):
            tracemalloc.reset_peak()
            learner.learn(block, call=Call(in_turn=True))
            now, peak = tracemalloc.get_traced_memory()
            held.append(now / unit)
            peaks.append(peak / unit)
    finally:
        tracemalloc.stop()
    assert max(peaks) < MATRICES + 4  # the rows, and what does not depend on d, come on top for a d as small as this
    assert held[-1] < held[2] + 1
    information = weakref.ref(learner.belief.information)
    del learner
    assert information() is None


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize("engine", [None, "local"])
def test_passes_leave_no_totals_behind(engine, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5])) + 0.1 * rng.normal(size=400)
    np.savetxt(file := tmp_path / "a.csv", np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="")
    from kalprox.jobs import fit as passes

    sources, fit_learner = [], passes.fit_learner

    def watched(settings, passes, source, *start):
        sources.append(weakref.ref(source))
        return fit_learner(settings, passes, source, *start)

    monkeypatch.setattr("kalprox.jobs.fit.fit_learner", watched)
    table = Table([file], Columns("y", numeric=("a", "b", "c")))
    fitted = FitJob(table, {"link": "sigmoid", "likelihood": Gaussian(targets="any")}, engine=engine).run()
    assert fitted.belief.n_passes > 1 and len(sources) == 1
    assert sources[0]() is None
