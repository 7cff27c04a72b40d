"""Structures fitted to files in several passes are those of rows in memory, on engines and after interruptions too."""

import numpy as np
import pandas as pd
import pytest
from command import invoke

import kalprox as kp
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table
from kalprox.structures import LowRank

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning"),
]

FEATURES = [f"x{j}" for j in range(8)]
STRUCTURES = {"diagonal": "diagonal", "low_rank,rank=3": LowRank(3)}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(11)
    X = rng.standard_normal((600, 8)) @ (np.eye(8) + 0.3) + 2
    made = pd.DataFrame(X, columns=FEATURES)
    made["count"] = rng.poisson(np.exp(0.1 * X @ rng.standard_normal(8) - 0.5))
    made["kind"] = np.array(["red", "green", "blue"])[
        (X @ rng.standard_normal((8, 3)) + rng.gumbel(size=(600, 3))).argmax(1)
    ]
    return made


@pytest.fixture(scope="module")
def source(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("structures") / "rows.parquet"
    frame.to_parquet(path, row_group_size=200)
    return path


def assert_same(found, expected):
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(found.coef_std_, expected.coef_std_, rtol=1e-6)
    assert found.n_passes_ == expected.n_passes_ > 1


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("options", [(), ("--engine", "local", "--workers", 2, "--partitions", 3)], ids=["", "engine"])
def test_passes_over_a_file_find_the_estimate_of_rows_in_memory(frame, source, tmp_path, structure, options):
    out, features = tmp_path / "m.kalprox", ",".join(FEATURES)
    for target, likelihood in (("count", "poisson"), ("kind", "categorical")):
        arguments = ["-y", target, "--features", features, "--likelihood", likelihood, "--structure", structure]
        invoke("fit", source, "-q", "--out", out, *arguments, "--passes", 100, *options)
        if target == "count":
            model = kp.KalproxRegressor(likelihood="poisson", structure=STRUCTURES[structure])
        else:
            model = kp.KalproxClassifier(structure=STRUCTURES[structure])
        assert_same(kp.load(out), model.fit(frame[FEATURES].to_numpy(), frame[target]))


def test_a_structured_fit_goes_on_where_it_was_interrupted(source, tmp_path):
    table = Table((source,), Columns("count", numeric=tuple(FEATURES)))
    settings = {"likelihood": "poisson", "structure": "diagonal"}
    whole = FitJob(table, settings, passes=100).run()
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FitJob(table, settings, passes=100, checkpoint=tmp_path / "c", watch=stop).run()
    after = []
    again = FitJob(table, settings, passes=100, checkpoint=tmp_path / "c", watch=after.append).run(tmp_path / "m")
    assert after[0].number >= seen[-1].number > 10
    np.testing.assert_array_equal(again.belief.coef, whole.belief.coef)
    np.testing.assert_array_equal(TableModel.load(tmp_path / "m").belief.coef_std, whole.belief.coef_std)
