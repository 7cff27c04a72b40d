"""A state is restored from the arrays of a file only if they are what its fields say."""

import numpy as np
import pytest

from kalprox.base.tree import Saved, flatten
from kalprox.learning.sandwich import Sandwich

SIZES = {"p": 2, "d": 1, "k": None, "m": 1}


def saved():
    header, arrays = {}, {}
    known = {"a": np.ones((2, 2)), "b": np.zeros((2, 2))}
    flatten("s", Sandwich(np.zeros(1), np.eye(2)[None], 3.0, known), header, arrays)
    return header, arrays


def test_a_mapping_is_restored():
    restored = Saved(*saved()).tree(Sandwich, "s", SIZES)
    assert list(restored.groups) == ["a", "b"]
    np.testing.assert_array_equal(restored.groups["a"], np.ones((2, 2)))


@pytest.mark.parametrize("lost", ["values", "labels"])
def test_half_of_a_mapping_is_refused(lost):
    header, arrays = saved()
    del arrays[f"s.groups.{lost}"]
    with pytest.raises(ValueError, match="do not agree"):
        Saved(header, arrays).tree(Sandwich, "s", SIZES)


def test_an_array_is_no_mapping():
    header, arrays = saved()
    arrays["s.groups"] = arrays.pop("s.groups.values")
    del arrays["s.groups.labels"]
    with pytest.raises(ValueError, match="do not agree"):
        Saved(header, arrays).tree(Sandwich, "s", SIZES)
