"""The parameters of a function of one's own are named as such everywhere, never after the columns of the data."""

import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from kalprox import KalproxRegressor


def curve(theta, x):
    return theta[0] * jnp.exp(-theta[1] * x[0]) + theta[2] + theta[3] * x[1]


def named(theta, x):
    return curve(theta, x)


named.parameter_names = ["level", "rate", "floor", "slope"]


def line(theta, x):  # as many parameters as columns
    return theta[0] + theta[1] * x[0]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(31)
    X = pd.DataFrame({"COPPER": rng.uniform(0, 3, 300), "ZINC": rng.normal(size=300)})
    y = 2 * np.exp(-X["COPPER"]) + 0.5 + 0.3 * X["ZINC"] + 0.1 * rng.normal(size=300)
    return X, y


def page(model, folder):
    text = model.report(folder / "model.html").read_text()
    text = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def everywhere(model, folder):
    """The names as the page, the summary, the frame, the notebook and the plot have them."""
    labels = " ".join(label.get_text() for label in model.plot().get_yticklabels())
    notebook = model._repr_html_().rpartition("<table")[2]  # scikit-learn's own part comes before
    return [page(model, folder), str(model.summary()), " ".join(model.to_frame()["name"]), notebook, labels]


@pytest.mark.parametrize(
    ("function", "stream"),
    [
        (named, True),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(curve, False), (curve, True), (named, False)]),
    ],
)
def test_more_parameters_than_columns(rows, tmp_path, function, stream):
    X, y = rows
    model = KalproxRegressor(function=function, start=[1.0, 1.0, 0.0, 0.0])
    model = model.partial_fit(X, y) if stream else model.fit(X, y)
    wanted = getattr(function, "parameter_names", [f"theta[{i}]" for i in range(4)])
    for text in everywhere(model, tmp_path):
        assert all(name in text for name in wanted)
        assert "COPPER" not in text and "ZINC" not in text and " at 0x" not in text


def test_as_many_parameters_as_columns(rows, tmp_path):
    X, y = rows
    model = KalproxRegressor(function=line, start=[0.0, 0.0]).fit(X, y)
    for text in everywhere(model, tmp_path):
        assert "theta[0]" in text and "theta[1]" in text and "COPPER" not in text and "ZINC" not in text


def test_a_parameter_that_no_row_depends_on_is_a_doubt_with_its_name(rows, tmp_path):
    X, y = rows

    def unused(theta, x):
        return theta[0] + theta[1] * x[0] + 0 * theta[2]

    unused.parameter_names = ("base", "effect", "idle")
    with pytest.warns(RuntimeWarning, match="do not determine idle of the function"):
        model = KalproxRegressor(function=unused, start=[0.0, 0.0, 0.0]).fit(X, y)
    assert "The rows do not determine idle" in page(model, tmp_path)


def test_as_many_names_as_parameters(rows):
    with pytest.raises(ValueError, match=r"as many names as start has entries, 3; got 4"):
        KalproxRegressor(function=named, start=[1.0, 1.0, 0.0]).fit(*rows)
