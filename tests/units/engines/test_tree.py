"""The tree of merges: its shape depends on the indices of the partitions alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kalprox.engines.base import PartialFold, PartitionSummary, Tree


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_the_tree_is_the_same_in_any_order_of_arrival(n, seed, data):
    values = np.random.default_rng(seed).normal(size=n).tolist()
    without_rows = data.draw(st.sets(st.integers(0, n - 1)))
    order = data.draw(st.permutations(range(n)))

    def summed(low, high):
        if high - low == 1:
            return None if low >= n or low in without_rows else values[low]
        middle = (low + high) // 2
        left, right = summed(low, middle), summed(middle, high)
        return right if left is None else left if right is None else left + right

    tree = Tree()
    for i in order:
        if i not in without_rows or data.draw(st.booleans()):
            tree.put(i, PartialFold(None if i in without_rows else values[i]))
    assert tree.result().total == summed(0, 1 << max(1, n).bit_length())


def test_subtrees_merged_elsewhere_give_the_same_bits():
    values = np.random.default_rng(0).normal(size=77).tolist()
    whole, upper = Tree(), Tree()
    for i, value in enumerate(values):
        whole.put(i, PartialFold(value, {i: PartitionSummary(str(i))}))
    for group in range(0, 77, 32):
        lower = Tree()
        for i in range(group, min(group + 32, 77)):
            lower.put(i, PartialFold(values[i], {i: PartitionSummary(str(i))}))
        upper.put(group >> 5, lower.result(), 5)
    assert upper.result().total == whole.result().total
    assert sorted(upper.result().summaries) == list(range(77))
