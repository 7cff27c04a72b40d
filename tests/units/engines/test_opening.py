"""Opening engines by name, and refining on one."""

import sys

import numpy as np
import pytest
from engine_data import COLUMNS, KINDS, sample, table, write

import kalprox as kp
from kalprox import engines
from kalprox.engines import LocalEngine, engine_of, partitions_of
from kalprox.sources.table import Table


def test_engines_by_name():
    with engines.open() as engine:
        assert isinstance(engine, LocalEngine) and not engine.processes
        with engines.open(engine) as same:
            assert same is engine
    with pytest.raises(ValueError, match=r"engine must be None, 'local'.*got 'slurm'"), engines.open("slurm"):
        pass
    with pytest.raises(ValueError, match="workers must be at least 1"), engines.open("local", workers=-1):
        pass
    assert engine_of(np.ones(3)) == "local"


@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("tcp://h:1", "distributed")])
def test_without_dask_the_message_says_what_to_install(engine, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "kalprox\[dask\]"'), engines.open(engine):
        pass


def test_without_spark_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ImportError, match=r'pip install "kalprox\[spark\]"'), engines.open("spark"):
        pass


@pytest.mark.slow
def test_refine_takes_arrays_sources_and_partitions(tmp_path):
    write(tmp_path, [table(80, seed) for seed in range(3)])
    files = Table(str(tmp_path), COLUMNS)
    X, y, w = (np.concatenate([getattr(b, name) for b in files.blocks()]) for name in ("X", "y", "weights"))
    model, regularizer = KINDS["sigmoid"][0](), KINDS["sigmoid"][1]

    def fit(source, **options):
        return kp.refine(model, regularizer, source, np.zeros(3), **options)

    expected = fit((X, y, w))
    for found in (
        fit(files),
        fit(partitions_of(str(tmp_path), COLUMNS)),
        fit(partitions_of(str(tmp_path), COLUMNS), engine=LocalEngine(1)),
        fit((X, y, w), engine="local"),
    ):
        assert found.converged
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)
        np.testing.assert_allclose(found.cov, expected.cov, rtol=1e-9)
    prior = kp.Information.from_prior(np.ones(3), 100 * np.eye(3))
    held = fit((X, y, w), engine="local", prior=prior, gamma=2.0, max_passes=50)
    np.testing.assert_allclose(held.mean, fit((X, y, w), prior=prior, gamma=2.0).mean, rtol=1e-10)
    with pytest.raises(ValueError, match="engine must be None where source is a Source"):
        fit(files, engine="local")
    with pytest.raises(TypeError, match="source must be"):
        fit(3)


def test_refine_refuses_partitions_without_a_good_row():
    X, y, _ = sample()
    with pytest.raises(ValueError, match="at least one good row"):
        kp.refine(KINDS["ridge"][0](), KINDS["ridge"][1], partitions_of((X[:0], y[:0])), np.zeros(3))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("likelihood", [kp.likelihoods.Bernoulli(), kp.likelihoods.Poisson(), kp.likelihoods.Huber()])
def test_refine_of_a_likelihood_on_processes_is_that_of_one_machine(likelihood):
    X, y, _ = sample()
    y = (y > np.median(y)).astype(float)
    options = {"start": np.zeros(3), "likelihood": likelihood}
    here = kp.refine(kp.models.Linear(), kp.regularizers.L1(0.5), (X, y), **options)
    with engines.open("processes", workers=2) as engine:
        there = kp.refine(kp.models.Linear(), kp.regularizers.L1(0.5), partitions_of((X, y)), engine=engine, **options)
    assert here.converged and there.converged
    np.testing.assert_allclose(there.mean, here.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(there.cov, here.cov, rtol=1e-8, atol=1e-14)
