"""What the bounds of `tests/house.py` count."""

from house import measured

SOURCE = """'Doc.'

# comment
def f(a, b):  # more
    'Doc.'
    if a:
        return [
            b
        ]
    return isinstance(a, int)

class C:
    def g(self): ...
    def h(self, *, a, b, c, d, e, f, i, j, k, l, m, n): ...
"""


def test_the_measure_sees_what_it_counts():
    assert list(measured([SOURCE, "x = 1\n"]).values()) == [10, 2, 1, 9, 2, 1, 2]
