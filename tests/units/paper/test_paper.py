"""The paper's experiments, small: the numbers, the cache, interruption, the same seed the same numbers."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import kalprox as kp
from kalprox.pages.page import render, to_json
from kalprox.paper import (
    cache,
    problems,
    ridge,
    sparse,
)
from kalprox.paper.cache import Task, cached, cached_all
from kalprox.paper.claims import measure_constant_step
from kalprox.paper.run import Diverged

RIDGE = ridge.Settings(n=3000, d=12, gammas=(0.005, 0.02, 0.05, 0.1, 0.15, 0.2), points=25)
SPARSE = sparse.Settings(n=4000, d=10, sizes=(1.0, 3.0), points=20, filter_points=3)
SEEDS = (0, 1, 2)


@contextlib.contextmanager
def here(jobs):
    """A replacement for `workers` without processes, so that a test need not wait for them to import JAX."""

    def submit(function, *args):
        future = Future()
        future.set_result(function(*args))
        return future

    yield submit


def in_folder(folder, **options):
    return functools.partial(cached_all, folder, **options)


@pytest.fixture(scope="module")
def ridges(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "workers", here)
        return [ridge.compute(RIDGE, seed, in_folder(tmp_path_factory.mktemp("ridge"))) for seed in SEEDS]


@pytest.fixture(scope="module")
def sparses(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "workers", here)
        return sparse.compute(SPARSE, SEEDS, in_folder(tmp_path_factory.mktemp("sparse")))


def numbers(results):
    """All but the times, which are no part of "the same numbers"."""
    return {key: value for key, value in results.items() if not key.startswith("seconds")}


# --- the cache


def counted(folder, settings, value=1.0, calls=None):
    def compute(_):
        calls.append(1)
        return {"a": np.arange(5) * value, "b": value, "c": "word", "d": True}

    return cached(folder, Task("thing", settings, compute))


def test_computed_once_and_read_as_it_was_computed(tmp_path):
    calls = []
    first = counted(tmp_path, {"n": 3}, 0.1, calls)
    again = counted(tmp_path, {"n": 3}, 0.2, calls)
    assert len(calls) == 1
    np.testing.assert_equal(again, first)
    assert {key: type(value) for key, value in again.items()} == {"a": np.ndarray, "b": float, "c": str, "d": bool}


@pytest.mark.parametrize("changed", [{"n": 4}, {"n": 3.5}, {"n": 3, "m": 0}, {"N": 3}, {"n": [3]}])
def test_a_changed_setting_is_not_served_from_the_cache(tmp_path, changed):
    calls = []
    counted(tmp_path, {"n": 3}, 0.1, calls)
    assert counted(tmp_path, changed, 0.2, calls)["b"] == 0.2
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["SCHEMA", "__version__"])
def test_nor_is_what_another_version_computed(tmp_path, monkeypatch, name):
    calls = []
    counted(tmp_path, {}, 0.1, calls)
    monkeypatch.setattr(cache, name, 99)
    counted(tmp_path, {}, 0.2, calls)
    assert len(calls) == 2


def test_a_file_under_the_wrong_name_is_not_believed(tmp_path):
    calls = []
    counted(tmp_path, {"n": 3}, 0.1, calls)
    (here,) = tmp_path.iterdir()
    counted(tmp_path, {"n": 4}, 0.2, calls)
    (other,) = set(tmp_path.iterdir()) - {here}
    here.replace(other)
    assert counted(tmp_path, {"n": 4}, 0.3, calls)["b"] == 0.3


def test_a_damaged_file_is_computed_again(tmp_path):
    calls = []
    first = counted(tmp_path, {}, 0.1, calls)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        np.testing.assert_equal(counted(tmp_path, {}, 0.1, calls), first)
    assert len(calls) == 1 + len(range(0, len(whole), 97))
    for place in range(0, len(whole), 7):  # a flipped byte may hit padding: but wrong numbers never come out
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        np.testing.assert_equal(counted(tmp_path, {}, 0.1, calls), first)
    assert path.read_bytes() == whole


def test_a_failure_leaves_no_file_and_the_old_one_untouched(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        cached(tmp_path, Task("thing", {}, lambda _: {"a": 1 / 0}))
    with pytest.raises(TypeError, match="must be arrays, numbers, booleans or text; 'a' holds"):
        cached(tmp_path, Task("thing", {}, lambda _: {"a": None}))
    monkeypatch.setattr(os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cached(tmp_path, Task("thing", {}, lambda _: {"a": 1}))
    assert list(tmp_path.iterdir()) == []


def slowly(settings):
    time.sleep(0.05)
    return {"value": np.full(1000, settings["i"])}


def write_all(folder):
    for i in range(10):
        cached(folder, Task("slow", {"i": i}, slowly))


@pytest.mark.slow
@pytest.mark.integration
def test_two_processes_at_once(tmp_path):
    context = get_context("spawn")
    two = [context.Process(target=write_all, args=(tmp_path,)) for _ in range(2)]
    for process in two:
        process.start()
    for process in two:
        process.join()
    assert [process.exitcode for process in two] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 10  # and nothing half-written beside them
    for i in range(10):
        assert (cached(tmp_path, Task("slow", {"i": i}, dict))["value"] == i).all()


def failing(settings):
    raise ArithmeticError("no such number")


@pytest.mark.slow
@pytest.mark.integration
def test_order_progress_and_a_failing_task(tmp_path):
    tasks = [Task("slow", {"i": i}, slowly) for i in range(4)]
    seen = []
    cached_all(tmp_path, tasks[2:3])
    out = cached_all(tmp_path, tasks, jobs=2, progress=lambda done, total: seen.append((done, total)))
    assert [results["value"][0] for results in out] == [0, 1, 2, 3]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(ArithmeticError, match="no such number"):
        cached_all(tmp_path, [*tasks, Task("fail", {}, failing)])


# --- the ridge experiment


@pytest.mark.slow
def test_ridge_pipg_falls_and_depends_less_on_gamma_than_ipg(ridges):
    for results in ridges:
        pipg, ipg = results["pipg"], results["ipg"]
        assert pipg.shape == ipg.shape == results["constant"].shape == (6, len(results["rows"]))
        assert (pipg[:, -1] < 0.1 * pipg[:, 0]).all()
        assert pipg[:, -1].max() / pipg[:, -1].min() < ipg[:, -1].max() / ipg[:, -1].min()
        assert np.median(pipg[:, -1]) < np.median(ipg[:, -1])


@pytest.mark.slow
def test_ridge_seeds_differ(ridges):
    assert len({results["filter"].tobytes() for results in ridges}) == len(SEEDS)


@pytest.mark.slow
def test_ridge_constant_step_stays_away_from_the_solution(ridges):
    for results in ridges:
        assert results["constant"].max() < 2
        assert (results["constant"][-3:, -1] > 3 * results["ridge_once"]).all()


def test_a_constant_step_diverges_only_where_its_step_on_g_expands():
    rows = problems.ridge(2000, 20, seed=1)

    def last(lam, gamma):
        alg = kp.ipg(kp.models.Linear(), kp.regularizers.Ridge(lam), gamma=gamma, decay=0.0)
        return np.abs(kp.run(alg, alg.init(np.ones(20)), rows.X, rows.y).state.mean).max()

    with pytest.raises(Diverged):
        last(1.0, 100.0)
    for lam in (0.01, 1.0, 30.0):
        bound = 1 + np.abs(rows.y).max() * np.linalg.norm(rows.X, axis=1).max()
        assert last(lam, 1.9 / lam) < bound < 1e20 < last(lam, 2.1 / lam)


def test_the_page_about_the_paper_says_of_a_constant_step_what_is_measured():
    text = (Path(__file__).parents[3] / "docs" / "explanation" / "paper.md").read_text()
    found = measure_constant_step({})
    assert f"{found['below_two']:.3g} with gamma lambda = 1.9, {found['above_two']:.3g} at 2.1" in text
    assert "cannot diverge" not in text


def test_ridge_sweep_equals_single_runs_of_the_oracle(ridges):
    rows = problems.ridge(RIDGE.n, RIDGE.d, SEEDS[0])
    for i in (0, 5):
        errors = {}
        theta, V = np.zeros(RIDGE.d), RIDGE.v0 * np.eye(RIDGE.d)
        gamma = RIDGE.gammas[i]
        for k, (x, y) in enumerate(zip(rows.X, rows.y, strict=True), start=1):
            M = np.eye(RIDGE.d) - gamma * RIDGE.lam * V  # eqs. (KFMeanPred)-(KFCovUpdate)
            theta, V = M @ theta, M @ V @ M.T
            gain = V @ x / (1 / gamma + x @ V @ x)
            theta, V = theta + gain * (y - x @ theta), V - np.outer(gain, V @ x)
            errors[k] = np.linalg.norm(theta - rows.theta) / np.linalg.norm(rows.theta)
        np.testing.assert_allclose(ridges[0]["pipg"][i], [errors[k] for k in ridges[0]["rows"]], rtol=1e-10)


def test_ridge_filter_is_the_closed_form_at_every_mark(ridges):
    rows = problems.ridge(RIDGE.n, RIDGE.d, SEEDS[0])
    root = np.sqrt(RIDGE.lam) * np.eye(RIDGE.d)
    for k, error in zip(ridges[0]["rows"], ridges[0]["filter"], strict=True):
        stacked = np.vstack([rows.X[:k], root]), np.concatenate([rows.y[:k], np.zeros(RIDGE.d)])
        solution = np.linalg.lstsq(*stacked, rcond=None)[0]
        exact = np.linalg.norm(solution - rows.theta) / np.linalg.norm(rows.theta)
        np.testing.assert_allclose(error, exact, rtol=1e-10)
    np.testing.assert_allclose(ridges[0]["filter"][-1], ridges[0]["ridge_once"], rtol=1e-10)


def test_ridge_pipg_settles_where_g_counts_once_per_row(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "workers", here)
    settings = ridge.Settings(n=20_000, d=5, lam=0.5, gammas=(0.2,), points=3)
    results = ridge.compute(settings, 0, in_folder(tmp_path))
    assert results["ridge_every_row"] > 0.3
    assert abs(results["pipg"][0, -1] / results["ridge_every_row"] - 1) < 0.01
    assert results["pipg"][0, -1] > 10 * results["ridge_once"]


# --- the sparse experiment


@pytest.mark.slow
def test_sparse_estimates_are_those_of_the_public_names(sparses):
    rows = problems.sparse(SPARSE.n, SPARSE.d, SPARSE.sizes[1], SEEDS[2])
    np.testing.assert_array_equal(sparses["truth"][1, 2], rows.theta)
    h, g = kp.models.GLM("sigmoid"), kp.regularizers.SmoothL1(1e-5, 0.1)
    for method, alg in {
        "pipg": kp.pipg(h, g, gamma=1.0, q=1e-4),
        "pipg0": kp.pipg(h, g, gamma=1.0),
        "sgd": kp.sgd(h, g, alpha0=1.0, alpha1=1e-4),
    }.items():
        state = kp.run(alg, alg.init(np.zeros(SPARSE.d), 100.0), rows.X, rows.y).state
        np.testing.assert_allclose(sparses[f"mean_{method}"][1, 2], state.mean, rtol=1e-10, atol=1e-12)
        last = np.linalg.norm(state.mean - rows.theta) / np.linalg.norm(rows.theta)
        np.testing.assert_allclose(sparses[f"error_{method}"][1, 2, -1], last, rtol=1e-10)
        if method == "pipg":
            np.testing.assert_allclose(sparses["cov_pipg"][1, 2], state.cov(), rtol=1e-10, atol=1e-14)
            np.testing.assert_allclose(sparses["trace_pipg"][1, 2, -1], state.var(), rtol=1e-10)
            np.testing.assert_array_equal(sparses["trace_pipg"][1, 2, -1], sparses["var_pipg"][1, 2])


def objective(theta, rows):
    """(1) with the prior N(0, 100 I), from its definition."""
    u = rows.X @ theta
    misfit = rows.y - 1 / (1 + np.exp(-u))
    return (misfit @ misfit) / 2 + 1e-5 * (np.sqrt(1 + theta**2 / 0.01) - 1).sum() + theta @ theta / 200


@pytest.mark.slow
def test_sparse_refined_is_the_minimiser_and_its_error_no_worse_than_the_streams(sparses):
    assert sparses["converged"].all()
    for i, size in enumerate(SPARSE.sizes):
        for j, seed in enumerate(SEEDS):
            rows = problems.sparse(SPARSE.n, SPARSE.d, size, seed)
            refined = objective(sparses["mean_refined"][i, j], rows)
            for method in ("filter", "pipg", "pipg0", "sgd"):
                assert refined <= objective(sparses[f"mean_{method}"][i, j], rows) * (1 + 1e-14)
    # The minimiser need not be the nearest to the truth on each data set: over all of them, by Student's t.
    worse = np.log(sparses["error_refined"][..., -1] / sparses["error_filter"][..., -1]).ravel()
    assert worse.mean() <= stats.t.ppf(0.99, worse.size - 1) * worse.std(ddof=1) / worse.size**0.5


@pytest.mark.slow
def test_sparse_order_of_the_methods(sparses):
    for i in range(len(SPARSE.sizes)):
        middle = {m: np.median(sparses[f"error_{m}"][i, :, -1]) for m in sparse.METHODS}
        assert middle["filter"] < middle["pipg"] < middle["sgd"]
        assert middle["refined"] < middle["pipg"]


@pytest.mark.slow
def test_sparse_coverage_counts_taps_within_two_sigma(sparses):
    covered = sparse.coverage(sparses, "pipg")
    for i in range(2):
        for j in range(3):
            truth, mean = sparses["truth"][i, j], sparses["mean_pipg"][i, j]
            sigma = np.sqrt(np.diag(sparses["cov_pipg"][i, j]))
            inside = [abs(t - m) <= 2 * s for t, m, s in zip(truth, mean, sigma, strict=True)]
            assert covered[i, j] == sum(inside) / SPARSE.d
    assert sparse.coverage(sparses, "sgd") is None
    assert sparse.coverage(sparses, "refined").mean() > 0.8


# --- both


@pytest.mark.slow
@pytest.mark.parametrize("which", ["ridge", "sparse"])
def test_figures_hold_their_numbers_and_the_words_are_derived(which, ridges, sparses):
    module, results = (ridge, ridges[0]) if which == "ridge" else (sparse, sparses)
    section = module.section(results)
    for figure in section.figures:
        written = json.loads(json.dumps(to_json(figure.numbers), allow_nan=False))
        assert written["settings"]["n"] == results["settings"]["n"]
        for key in set(written) & set(numbers(results)) - {"settings", "seed", "seeds"}:
            expected = np.asarray(results[key])
            if which == "sparse" and key not in ("rows", "filter_rows", "sizes") and len(written["seeds"]) == 1:
                expected = expected[:, 0]
            np.testing.assert_array_equal(np.array(written[key]), expected)
        assert len(render(figure, "svg")) > 10_000
    spoken = " ".join(module.conclusions(results))
    changed = dict(results) | {key: results[key] * 1.7 for key in results if key in ("pipg", "ipg", "error_pipg")}
    assert " ".join(module.conclusions(changed)) != spoken
    last = np.median(results["pipg"][:, -1]) if which == "ridge" else np.median(results["error_pipg"][0, :, -1])
    assert f"{last:.3g}" in spoken


@pytest.mark.integration
@pytest.mark.slow
def test_ridge_same_numbers_whatever_jobs(tmp_path):
    settings = ridge.Settings(n=400, d=12, gammas=tuple(np.linspace(0.01, 0.2, 7)), points=5)
    one = ridge.compute(settings, 3, in_folder(tmp_path / "one", jobs=1))
    np.testing.assert_equal(ridge.compute(settings, 3, in_folder(tmp_path / "two", jobs=2)), one)


def running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks for the processes in Linux's /proc")
def test_a_killed_run_resumes_and_gives_the_same_numbers_whatever_jobs(tmp_path):
    settings = sparse.Settings(n=2000, d=6, sizes=(2.0,), points=5, filter_points=2)
    seeds = range(5)
    script = (
        "import functools, sys; from kalprox.paper import cache, sparse\n"
        f"sparse.compute(sparse.{settings!r}, {seeds!r}, functools.partial(cache.cached_all, sys.argv[1], jobs=1))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "killed")])
    while not list(tmp_path.glob("killed/*.npz")):
        assert process.poll() is None
        time.sleep(0.002)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    patience = time.monotonic() + 600
    while any(map(running, children)):
        assert time.monotonic() < patience, "the workers outlive the run"
        time.sleep(0.01)
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("killed/*.npz")}
    assert 1 <= len(done) < 5
    seen = []
    progress = {"progress": lambda *at: seen.append(at)}
    resumed = sparse.compute(settings, seeds, in_folder(tmp_path / "killed", jobs=2, **progress))
    assert seen[0] == (len(done), 5) and seen[-1] == (5, 5)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())  # nothing done twice
    fresh = sparse.compute(settings, seeds, in_folder(tmp_path / "fresh", jobs=1))
    np.testing.assert_equal(numbers(resumed), numbers(fresh))
