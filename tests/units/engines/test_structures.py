"""A model with a structure on an engine is that of the rows in memory."""

import numpy as np
import pytest
import scipy.sparse

from kalprox import KalproxRegressor, engines, models, refine, regularizers
from kalprox.engines import EngineSource, partitions_of
from kalprox.structures import LowRank

pytestmark = pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)) + RNG.normal(size=(300, 1))
Y = X @ [0.5, -0.3, 0.2, 0.0, 0.1, 0.4] + RNG.normal(size=300)


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("structure", ["diagonal", LowRank(3)], ids=["diagonal", "LowRank"])
@pytest.mark.parametrize(
    "settings", [{}, {"penalty": "l1", "alpha": 5.0}, pytest.param({"likelihood": "student"}, marks=pytest.mark.slow)]
)
def test_any_division_into_partitions_gives_the_same_model(settings, structure, engine):
    expected = KalproxRegressor(structure=structure, **settings).fit(X, Y)
    with engines.open(engine, workers=2) as opened:
        source = EngineSource(opened, partitions_of((X, Y), n=4))
        found = KalproxRegressor(structure=structure, **settings).fit_source(source, 6)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.coef_std_, expected.coef_std_, rtol=1e-9)
    np.testing.assert_allclose(found.noise_var_, expected.noise_var_, rtol=1e-9)


def test_refine_takes_both():
    about = models.Linear(), regularizers.Ridge(1.0), (X, Y), np.zeros(6)
    one, other = (refine(*about, structure="diagonal", engine=engine) for engine in (None, "local"))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)


def test_a_sparse_matrix_is_named():
    with pytest.raises(TypeError, match="X must be dense on an engine"):
        KalproxRegressor(structure="diagonal", engine="local").fit(scipy.sparse.csr_array(X), Y)
