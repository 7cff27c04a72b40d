"""Arrow arrays by their buffers, against pyarrow's own conversions."""

import numpy as np
import pyarrow as pa
import pytest

from kalprox.sources.arrow import from_bytes, from_numpy, to_numpy

CELLS = {
    "float64": pa.array([1.5, -0.0, float("nan"), 1e300] * 6),
    "float32": pa.array([0.25, 2.0] * 12, pa.float32()),
    "int8": pa.array(range(24), pa.int8()),
    "uint64": pa.array([2**64 - 1, 0] * 12, pa.uint64()),
    "bool": pa.array([True, False, False] * 8),
}


@pytest.mark.parametrize("part", [slice(None), slice(0, 0), slice(3, 4), slice(9, 21), slice(8, 24)])
@pytest.mark.parametrize("kind", CELLS)
def test_slices_have_the_values_that_pyarrow_gives(kind, part):
    column = CELLS[kind][part]
    np.testing.assert_array_equal(to_numpy(column), column.to_numpy(zero_copy_only=False), strict=True)


@pytest.mark.parametrize("part", [slice(None), slice(0, 0), slice(3, 4), slice(9, 21)])
@pytest.mark.parametrize("kind", CELLS)
def test_nulls_are_nan_or_nothing(kind, part):
    null = np.arange(24) % 5 == 3
    column = from_numpy(to_numpy(CELLS[kind]), null)
    column.validate(full=True)
    assert column.to_pylist() == [
        None if gone else cell for gone, cell in zip(null, CELLS[kind].to_pylist(), strict=True)
    ] or (
        kind == "float64"  # where NaN differs from itself
    )
    values, gone = to_numpy(column[part]), null[part]
    assert np.isnan(values[gone]).all() if values.dtype.kind == "f" else not values[gone].any()
    np.testing.assert_array_equal(values[~gone], to_numpy(CELLS[kind][part])[~gone], strict=True)


def test_columns_of_nulls_and_no_cells():
    assert np.isnan(to_numpy(pa.nulls(3, pa.float64()))).all()
    assert not to_numpy(pa.nulls(9, pa.bool_())).any()
    assert to_numpy(pa.array([], pa.int32())).dtype == np.int32
    assert from_numpy(np.empty(0)).type == pa.float64() and len(from_numpy(np.empty(0, bool))) == 0


def test_a_strided_array_is_copied_and_others_are_not():
    values = np.arange(6.0)
    assert from_numpy(values[::2]).to_pylist() == [0.0, 2.0, 4.0]
    assert np.shares_memory(to_numpy(from_numpy(values)), values)


def test_bytes_are_those_of_pyarrow():
    cells = [b"a", None, b"", "\u20ac".encode(), b"\x00\xff"] * 5
    made = from_bytes(cells)
    made.validate(full=True)
    assert made.equals(pa.array(cells, pa.binary())) and from_bytes([]).equals(pa.array([], pa.binary()))
