"""Missing and delayed targets."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.structures import LowRank


def _data(n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X @ [1.0, 2.0, -1.0] + 0.5 * rng.normal(size=n)
    late = rng.random(n) < 0.4
    return X, y, late, np.where(late, np.nan, y)


def _stream(model, X, y, keys=True, batch=20, **more):
    for i in range(0, len(X), batch):
        rows = slice(i, i + batch)
        model.partial_fit(X[rows], y[rows], **({"keys": np.arange(len(X))[rows]} if keys else {}), **more)
    return model


def test_a_missing_target_is_an_error_unless_it_may_be_missing():
    X, _, _, y = _data()
    with pytest.raises(ValueError, match="missing='drop'"):
        KalproxRegressor(penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match="missing must be one of raise, drop, impute, marginalize"):
        KalproxRegressor(missing="skip").fit(X, y)
    y[0] = np.inf
    with pytest.raises(ValueError, match="NaN or infinity in 1 row"):
        KalproxRegressor(missing="impute").fit(X, y)
    assert KalproxRegressor(missing="drop").fit(X, y).n_rows_rejected_ == 1


def test_rows_without_a_target_are_counted_and_not_learned():
    X, _, late, y = _data()
    skip = {"missing": "drop"}
    for model in (
        KalproxRegressor(**({"penalty": "ridge"} | skip)).fit(X, y),
        _stream(KalproxRegressor(**({"penalty": "ridge"} | skip)), X, y, False),
    ):
        assert (model.n_rows_seen_, model.n_rows_unlabelled_) == ((~late).sum(), late.sum())
        np.testing.assert_allclose(
            model.coef_, KalproxRegressor(penalty="ridge").fit(X[~late], y[~late]).coef_, rtol=1e-9
        )
    with pytest.raises(ValueError, match="y has no target"):
        KalproxRegressor(missing="drop", penalty="ridge").fit(X, np.full(len(X), np.nan))


@pytest.mark.parametrize("forget", [1.0, 0.999])
def test_prequential_predicts_rows_without_a_target(forget):
    X, _, late, y = _data(200)
    model = KalproxRegressor(missing="drop", forget=forget, penalty="ridge")
    mean, std = model.prequential(X, y)
    assert np.isfinite(mean[2:]).all() and np.isfinite(std[2:]).all()
    known = KalproxRegressor(forget=forget, penalty="ridge").prequential(X[~late], y[~late])
    np.testing.assert_allclose((mean[~late], std[~late]), known, rtol=1e-6)
    i = int(np.flatnonzero(late)[-1])
    before = KalproxRegressor(forget=forget, penalty="ridge").fit(X[:i][~late[:i]], y[:i][~late[:i]])
    np.testing.assert_allclose((mean[i], std[i]), np.ravel(before.predict(X[i : i + 1], return_std=True)), rtol=1e-6)
    assert model.n_rows_unlabelled_ == late.sum()


def test_late_targets_make_the_model_of_all_rows():
    X, y, late, known = _data()
    keys = np.flatnonzero(late)
    model = _stream(KalproxRegressor(missing="drop", penalty="ridge"), X, known)
    assert model.n_rows_pending_ == late.sum() and model.n_rows_dropped_ == 0
    copies = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in copies:
        one.learn_late(keys[:50], y[keys[:50]]).learn_late(keys[50:], y[keys[50:]])
        np.testing.assert_allclose(one.coef_, KalproxRegressor(penalty="ridge").fit(X, y).coef_, rtol=1e-9)
        assert (one.n_rows_pending_, one.n_rows_seen_, one.n_rows_unlabelled_) == (0, 300, late.sum())


def test_a_late_row_is_scored_by_the_prediction_issued_when_it_came():
    X, y, _, _ = _data()
    model = KalproxRegressor(missing="drop", penalty="ridge").partial_fit(X[:100], y[:100])
    before = model.diagnostics_
    mean = model.predict(X[100:101])
    model.partial_fit(X[100:101], [np.nan], keys=["late"])
    model.partial_fit(X[101:], y[101:])
    between = model.diagnostics_
    model.learn_late(["late"], [1000.0])
    after = model.diagnostics_
    assert after.rows == between.rows + 1 and between.rows == before.rows + 199
    np.testing.assert_allclose(after.squared_errors - between.squared_errors, (1000 - mean[0]) ** 2, rtol=1e-9)


def test_what_waits_is_saved(tmp_path):
    X, y, late, known = _data()
    model = _stream(KalproxRegressor(), X, known, max_pending=50)
    assert (model.n_rows_pending_, model.n_rows_dropped_) == (50, late.sum() - 50)
    model.save(tmp_path / "model")
    other = KalproxRegressor.load(tmp_path / "model")
    assert (other.n_rows_pending_, other.n_rows_dropped_) == (50, late.sum() - 50)
    keys = np.flatnonzero(late)[-50:]
    for one in (model, other):
        one.learn_late(keys, y[keys])
    np.testing.assert_array_equal(model.coef_, other.coef_)
    assert model.diagnostics_.rows == other.diagnostics_.rows
    with pytest.raises(ValueError, match=r"was dropped: \d+ were, of the oldest, to hold 50"):
        model.learn_late(np.flatnonzero(late)[:1], [1.0])
    model.partial_fit(X[:1], [np.nan], keys=["new"], max_pending=50)
    with pytest.raises(ValueError, match="wait for their target"):
        model.save(tmp_path / "model", samples=False)


def test_targets_may_all_come_late():
    X, y, _, _ = _data()
    model = KalproxRegressor(missing="drop", penalty="ridge").partial_fit(X[:5], [np.nan] * 5, keys=list("abcde"))
    assert model.n_rows_pending_ == 5
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(ValueError, match="3 features"):
        model.partial_fit(X[:1, :2], [np.nan], keys=["f"])
    model.learn_late(["b", "a"], y[[1, 0]]).learn_late(["c", "d", "e"], y[2:5])
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(X[:5], y[:5]).coef_, rtol=1e-9)


def test_errors_name_the_keys_and_leave_the_model_unchanged():
    X, y, _, _ = _data()
    model = KalproxRegressor(missing="drop", penalty="ridge").partial_fit(
        X[:3], [1.0, np.nan, np.nan], keys=["a", "b", "c"]
    )
    before = model.coef_
    for keys, targets, match in (
        (["b", "x"], [1.0, 2.0], "'x': it was learned already"),
        (["b", "b"], [1.0, 2.0], "'b' has several"),
        (["b"], [np.nan], "y must be finite"),
        (["b", "c"], [1.0], "one key per row, 1 in all; got 2"),
        ([1.5], [1.0], "text or a whole number"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            model.learn_late(keys, targets)
    with pytest.raises(ValueError, match="'c' came before"):
        model.partial_fit(X[3:5], [np.nan, 1.0], keys=["d", "c"])
    assert model.n_rows_pending_ == 2 and (model.coef_ == before).all()
    with pytest.raises(ValueError, match="No row waits"):
        KalproxRegressor(penalty="ridge").fit(X, y).learn_late(["a"], [1.0])


def test_weights_groups_and_offsets_wait_with_their_rows():
    X, y, late, known = _data()
    keys, weights, groups = np.arange(300), np.random.default_rng(1).integers(1, 4, 300), np.arange(300) // 30
    settings = {"coef_cov": "clustered", "penalty": None}
    model = KalproxRegressor(missing="drop", **({"penalty": "ridge"} | settings))
    model.partial_fit(X, known, weights, groups, keys=keys).learn_late(keys[late], y[late])
    order = np.argsort(late, kind="stable")
    whole = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(
        X[order], y[order], weights[order], groups[order]
    )
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-9)
    counts = np.random.default_rng(2).poisson(np.exp(0.3 * X[:, 0] + 0.5)).astype(float)
    part = KalproxRegressor(likelihood="poisson", missing="drop")
    offset = np.full(300, 0.5)
    part.partial_fit(X, np.where(late, np.nan, counts), offset=offset, keys=keys)
    part.learn_late(keys[late], counts[late])
    assert part.n_rows_seen_ == 300 and abs(part.intercept_) < 0.3


def test_classes_come_late():
    X, y, late, _ = _data()
    labels = np.where(y > 0, "yes", "no").astype(object)
    known = np.where(late, None, labels)
    model = KalproxClassifier(missing="drop", class_weight={"yes": 2.0})
    model.partial_fit(X, known, classes=["no", "yes"], keys=np.arange(300))
    assert model.n_rows_pending_ == late.sum()
    with pytest.raises(ValueError, match="not among the classes, 'maybe'"):
        model.learn_late(np.flatnonzero(late)[:1], ["maybe"])
    model.learn_late(np.flatnonzero(late), labels[late])
    whole = KalproxClassifier(class_weight={"yes": 2.0}).fit(X, labels)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=0.1)
    proba = KalproxClassifier(missing="drop").prequential(X, known, classes=["no", "yes"])
    assert np.isfinite(proba[60:]).all()
    assert KalproxClassifier(missing="drop").fit(X, known).n_rows_unlabelled_ == late.sum()


def test_missing_features_and_targets_together(tmp_path):
    X, y, late, known = _data()
    Z = np.where(np.random.default_rng(3).random(X.shape) < 0.2, np.nan, X)
    model = _stream(KalproxRegressor(missing="marginalize", penalty="ridge"), Z, known)
    model.save(tmp_path / "model")
    model = KalproxRegressor.load(tmp_path / "model").learn_late(np.flatnonzero(late), y[late])
    assert model.n_rows_with_gaps_ == np.isnan(Z).any(axis=1).sum()
    assert (np.abs(model.coef_ - [1, 2, -1]) < 4 * model.coef_std_).all()


def test_merged_models_keep_what_waits():
    X, y, late, known = _data()
    one, two = (KalproxRegressor(missing="drop", penalty="ridge") for _ in range(2))
    one.partial_fit(X[:150], known[:150], keys=range(150))
    two.partial_fit(X[150:], known[150:], keys=range(150, 300))
    one.merge(two)
    assert one.n_rows_pending_ == one.n_rows_unlabelled_ == late.sum()
    one.learn_late(np.flatnonzero(late), y[late])
    np.testing.assert_allclose(one.coef_, KalproxRegressor(penalty="ridge").fit(X, y).coef_, rtol=1e-9)


def test_series_with_missing_values():
    pd = pytest.importorskip("pandas")
    X, _, _, _ = _data()
    frame = pd.DataFrame(X[:4], columns=list("abc"))
    for y in (pd.Series([1.0, pd.NA, 2.0, 3.0], dtype="Float64"), pd.Series([1.0, None, 2.0, 3.0], dtype=object)):
        model = KalproxRegressor(missing="drop", penalty="ridge").partial_fit(frame, y, keys=pd.Series(list("uvwx")))
        assert (model.n_rows_seen_, model.n_rows_pending_) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", LowRank(20)])
def test_sparse_rows_of_many_columns_wait_as_they_are(structure, tmp_path):
    rng, d = np.random.default_rng(1), 200_000
    rest = scipy.sparse.random_array((300, d - 1), density=5 / d, format="csr", rng=rng)
    x = rng.normal(size=(300, 1))
    X = scipy.sparse.hstack([scipy.sparse.csr_array(x), rest], format="csr")
    y = 2 * x[:, 0] + 0.1 * rng.normal(size=300)
    settings = {"structure": structure, "missing": "drop"}
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:200], y[:200])
    model.partial_fit(X[200:], np.full(100, np.nan), keys=np.arange(200, 300))
    size = model.save(tmp_path / "waiting") or (tmp_path / "waiting").stat().st_size
    KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:200], y[:200]).save(tmp_path / "before")
    assert model.n_rows_pending_ == 100 and size < (tmp_path / "before").stat().st_size + 100 * 10_000
    other, keys = KalproxRegressor.load(tmp_path / "waiting"), np.arange(200, 300)
    for one in (model, other):
        one.learn_late(keys, y[keys])
    whole = (
        KalproxRegressor(**({"penalty": "ridge"} | settings))
        .partial_fit(X[:200], y[:200])
        .partial_fit(X[200:], y[200:])
    )
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    assert model.diagnostics_.rows > 250 and model.n_rows_seen_ == 300
