"""What travels to workers and back: parts, models and totals."""

import pickle
from functools import partial

import cloudpickle
import numpy as np
import pytest
from engine_data import COLUMNS, THETA, bits, polynomial, sample

from kalprox.engines import FilePartition
from kalprox.engines.base import ModelPickler, unpacked
from kalprox.information import Information
from kalprox.information.linearized import Linearized, linearize
from kalprox.likelihoods import Gaussian
from kalprox.models import GLM
from kalprox.regularizers import L1
from kalprox.sources import Block


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_totals_and_parts_are_pickled(dumps):
    block = Block(*sample())
    info = Information.from_block(block)
    back = pickle.loads(dumps(info))
    assert bits(back) == bits(info) and back.targets is None
    found = pickle.loads(dumps(linearize(GLM("sigmoid"), Gaussian(), THETA, block)))
    assert isinstance(found, Linearized) and found.information.d == 3
    part = partial(linearize, GLM("tanh"), Gaussian(), THETA)
    assert pickle.loads(dumps(part))(block).rss == part(block).rss
    assert pickle.loads(dumps(L1(2.0))).value(THETA) == L1(2.0).value(THETA)
    assert pickle.loads(dumps(FilePartition(("a.csv",), COLUMNS))).columns == COLUMNS


def test_a_function_is_the_same_object_in_all_passes():
    pickler, model, block = ModelPickler(cloudpickle.dumps), polynomial(), Block(*sample())
    parts = [partial(linearize, model, Gaussian(), theta) for theta in (THETA, 2 * THETA)]
    first, second = (unpacked(pickle.loads(cloudpickle.dumps(pickler.packed(part)))) for part in parts)
    assert first.args[0] is second.args[0] and first.args[0] is not model
    assert second(block).rss == parts[1](block).rss
    assert np.array_equal(second.args[2], 2 * THETA)
    assert pickler.packed(Information.from_block) == Information.from_block
