"""The classifier for River with a structure: two classes of hashed rows that stay sparse."""

import pickle

import numpy as np
import pandas as pd
import pytest
from river import multiclass

from kalprox.adapters.river import RiverClassifier
from kalprox.structures import LowRank


def labelled_rows(n=300, seed=0):
    """Rows of words with a class that depends on them."""
    rng = np.random.default_rng(seed)
    weights, words = 1.5 * rng.normal(size=40), rng.integers(40, size=(n, 4))
    y = rng.random(n) < 1 / (1 + np.exp(-weights[words].sum(axis=1)))
    return [{f"w{i}": 1.0 for i in text} for text in words.tolist()], y.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", LowRank(10)], ids=["diagonal", "LowRank"])
def test_two_classes_are_learned(structure):
    """The log loss after half of the rows is below that of the share of the class."""
    rows, y = labelled_rows()
    model = RiverClassifier(hash_bits=16, structure=structure)
    losses = []
    for row, label in zip(rows, y, strict=True):
        if len(model.predict_proba_one(row)) == 2:
            losses.append(-np.log(model.predict_proba_one(row)[label]))
        model.learn_one(row, label)
    share = np.mean(y)
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert np.mean(losses[150:]) < 0.95 * entropy
    found = model.predict_proba_one(rows[0])
    assert sum(found.values()) == pytest.approx(1) and model.predict_one(rows[0]) == (found[True] > 0.5)
    frame = pd.DataFrame(rows[:6]).fillna(0.0)
    many = model.predict_proba_many(frame)
    for i, row in enumerate(rows[:6]):
        assert many[True].iloc[i] == pytest.approx(model.predict_proba_one(row)[True], rel=1e-9)
    assert model.predict_many(frame).tolist() == [model.predict_one(row) for row in rows[:6]]
    again = pickle.loads(pickle.dumps(model))
    assert again.predict_proba_one(rows[0]) == found
    assert model.to_estimator().classes_.tolist() == [False, True]


@pytest.mark.slow
def test_a_structure_that_keeps_all_ends_near_none():
    """Moments are matched row by row in both; the rows held in a warm-up, and the weak prior, leave a small part."""
    rows, y = labelled_rows()
    dense = RiverClassifier(hash_bits=4)
    sparse = RiverClassifier(hash_bits=4, structure=LowRank(17))
    for row, label in zip(rows, y, strict=True):
        dense.learn_one(row, label)
        sparse.learn_one(row, label)
    expected = dense.to_estimator()
    assert (np.abs(sparse.to_estimator().coef_ - expected.coef_) < 0.5 * expected.coef_std_).all()


def test_batches_and_weights_of_classes():
    rows, y = labelled_rows()
    frame, labels = pd.DataFrame(rows).fillna(0.0), pd.Series(["yes" if one else "no" for one in y])
    model = RiverClassifier(hash_bits=10, structure="diagonal", class_weight={"yes": 3.0})
    plain = RiverClassifier(hash_bits=10, structure="diagonal")
    for one in (model, plain):
        one.learn_many(frame[:100], labels[:100])
        one.learn_many(frame[100:], labels[100:])
    assert model.predict_proba_many(frame)["yes"].mean() > plain.predict_proba_many(frame)["yes"].mean() + 0.05


def test_more_than_two_classes():
    model = RiverClassifier(hash_bits=4, structure="diagonal")
    for label in ("a", "b"):
        model.learn_one({"x": 1.0}, label)
    before = model.predict_proba_one({"x": 1.0})
    with pytest.raises(ValueError, match=r"got a target of several classes\. Use river\.multiclass"):
        model.learn_one({"x": 1.0}, "c")
    assert model.predict_proba_one({"x": 1.0}) == before
    several = multiclass.OneVsRestClassifier(RiverClassifier(hash_bits=10, structure="diagonal"))
    for i in range(60):
        several.learn_one({f"word{i % 3}": 1.0}, "abc"[i % 3])
    assert [several.predict_one({f"word{i}": 1.0}) for i in range(3)] == ["a", "b", "c"]
