"""Files whose rows are sorted, and not in the order of time: the advice is to shuffle them, and shuffling helps."""

import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from kalprox import KalproxRegressor
from kalprox.cli import main


def gems(n=12_000, seed=20):
    """A table with a curved effect, of which two parts are sorted by the target, one after the other."""
    rng = np.random.default_rng(seed)
    size, kind = rng.normal(-0.3, 0.6, n), rng.choice(["fine", "plain"], n)
    price = 5 + 1.5 * size - 0.1 * size**2 + 0.2 * (kind == "fine") + 0.2 * rng.normal(size=n)
    frame = pd.DataFrame({"price": price, "size": size, "kind": kind})
    return pd.concat([frame[: n // 2].sort_values("price"), frame[n // 2 :].sort_values("price")])


def write(frame, path):
    kinds = {".csv": "to_csv", ".parquet": "to_parquet"}
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        getattr(frame, kinds[path.suffix])(path, index=False)


def kalprox(*args):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def fitted(folder, sources, *options):
    files = [folder / name for name in sources]
    said = kalprox("fit", *files, "--target", "price", "--penalty", "none", *options, "--out", folder / "m")
    return KalproxRegressor.load(folder / "m"), said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gems")
    frame = gems()
    for name in ("gems.csv", "gems.parquet", "gems.jsonl"):
        write(frame, folder / name)
    by_price = frame.sort_values("price")
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        write(by_price.iloc[part], folder / f"part{i}.csv")
    return folder


@pytest.mark.slow
def test_advice_asks_for_the_order_before_it_says_that_the_model_should_forget(folder):
    model, said = fitted(folder, ["gems.csv"])
    assert "drifting" in said and "If they are not in the order of time" in said
    assert said.index("shuffle them, with --shuffle 1,") < said.index("--forget auto")
    text = str(model.diagnostics_.verdict())
    assert text.index("order of time") < text.index("shuffle") < text.index('forget="auto"')
    _, said = fitted(folder, ["gems.csv"], "--forget", "0.9999")  # the user says that they are
    assert "drifting" in said and "shuffle" not in said
    assert "if they are not in the order of time, let it forget nothing" in said


@pytest.mark.parametrize(
    "sources",
    [
        ["gems.parquet"],
        ["part0.csv", "part1.csv", "part2.csv"],
        *(pytest.param([name], marks=pytest.mark.slow) for name in ("gems.csv", "gems.jsonl")),
    ],
)
def test_a_shuffled_file_does_not_drift_and_gives_the_same_model(folder, sources):
    plain, said = fitted(folder, sources)
    assert "drifting" in said
    shuffled, said = fitted(folder, sources, "--shuffle", 11)
    assert "drifting" not in said and "correlated" not in said
    assert shuffled.n_rows_seen_ == 12_000
    np.testing.assert_allclose(shuffled.coef_, plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(shuffled.coef_std_, plain.coef_std_, rtol=1e-9)


@pytest.mark.slow
def test_the_seed_determines_the_order(folder):
    write(gems(1_000, 22), folder / "few.csv")  # of which the last rows count
    first, again, other = (fitted(folder, ["few.csv"], "--forget", 0.9, "--shuffle", i)[0].coef_ for i in (4, 4, 5))
    assert np.array_equal(first, again) and not np.allclose(first, other, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.integration
def test_a_killed_fit_of_shuffled_rows_resumes_to_the_same_model(tmp_path):
    gems(60_000, 21).to_csv(tmp_path / "gems.csv", index=False)
    args = ["fit", tmp_path / "gems.csv", "--target", "price", "--forget", "0.999", "--shuffle", 3, "--memory", "1MB"]
    kalprox(*args, "--out", tmp_path / "whole")
    args = [*map(str, args), "--checkpoint", str(tmp_path / "c"), "--every", "1000", "--out", str(tmp_path / "resumed")]
    run = subprocess.Popen([sys.executable, "-m", "kalprox", *args], stderr=subprocess.DEVNULL)
    while not (tmp_path / "c").exists() and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL and (tmp_path / "c").exists()
    kalprox(*args)
    whole, resumed = (KalproxRegressor.load(tmp_path / name) for name in ("whole", "resumed"))
    assert np.array_equal(whole.coef_, resumed.coef_) and np.array_equal(whole.coef_std_, resumed.coef_std_)
    # Rows that were learned twice would be forgotten, but not their number.
    assert (whole.n_rows_seen_, whole.diagnostics_.rows) == (resumed.n_rows_seen_, resumed.diagnostics_.rows)
