"""Progress bars in a terminal, in a notebook, and where there is neither."""

import builtins
import os
import sys
import types

import numpy as np
import pytest

import kalprox as kp
from kalprox.display import progress as module
from kalprox.display.progress import progress_bar

X = np.random.default_rng(0).normal(size=(2000, 2))
Y = X @ np.ones(2)


class Output:
    """What a notebook shows in one place: the last content is what the reader sees."""

    def __init__(self, content):
        self.contents = [content]

    def update(self, content, *, raw):
        assert raw
        self.contents.append(content)


@pytest.fixture
def notebook(monkeypatch):
    """A process that looks like the kernel of a notebook, without widgets; the outputs of its cells."""
    outputs = []

    def display(content, *, raw, display_id):
        assert raw and display_id
        outputs.append(Output(content))
        return outputs[-1]

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    fake = types.ModuleType("IPython.display")
    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    return outputs


def ran(alg=None, **options):
    alg = kp.ipm(kp.models.Linear(), gamma=1.0) if alg is None else alg
    return kp.run(alg, alg.init(np.zeros(2), None if alg.by_block else 1.0), X, Y, record_every=100, **options)


@pytest.mark.parametrize("alg", [None, kp.proximal_filter(kp.models.Linear(), kp.regularizers.Zero())])
def test_a_run_in_a_notebook_has_one_bar_that_ends_at_all_rows(notebook, capsys, alg):
    np.testing.assert_array_equal(ran(alg, progress=True).state.mean, ran(alg).state.mean)
    assert len(notebook) == 1 and capsys.readouterr() == ("", "")
    first, last = notebook[0].contents[0], notebook[0].contents[-1]
    assert first["text/plain"].startswith("rows: 0 of 2,000 after 0:00:00")
    assert last["text/plain"].startswith("rows: 2,000 of 2,000 after ") and "left" not in last["text/plain"]
    assert "<progress value='2000' max='2000'" in last["text/html"] and "<script" not in last["text/html"]


@pytest.mark.slow
def test_a_notebook_is_not_flooded(notebook, monkeypatch):
    clock = iter(np.arange(0.0, 1e6, 0.01))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress_bar("rows", 10_000) as show:
        for done in range(1, 10_001):
            show(done, 10_000)
    assert 900 < len(notebook[0].contents) < 1100  # 100 seconds by this clock, ten times a second


def interrupted():
    with progress_bar("<b>", None) as show:
        show(3, None)
        raise KeyboardInterrupt


def test_the_bar_of_what_failed_stays_where_it_stopped(notebook):
    alg = kp.sgd(kp.models.Linear(), kp.regularizers.Zero(), alpha0=100.0, alpha1=0.0)
    with pytest.raises(FloatingPointError):
        ran(alg, progress=True)
    assert notebook[0].contents[-1]["text/plain"].startswith("rows: 0 of 2,000")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    last = notebook[1].contents[-1]
    assert last["text/plain"].startswith("<b>: 3 after") and "&lt;b&gt; <progress style" in last["text/html"]


def test_a_refinement_counts_its_passes(notebook):
    source, model = (X[:, 0], 3 / (1 + X[:, 1] ** 2)), kp.models.Function(lambda t, x: t[0] / (1 + t[1] * x**2))
    found = kp.refine(model, kp.regularizers.Zero(), source, np.ones(2), progress=True)
    assert notebook[0].contents[0]["text/plain"].startswith("passes: 0 after")
    assert notebook[0].contents[-1]["text/plain"].startswith(f"passes: {found.passes} after") and found.passes > 1
    kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, Y), np.zeros(2), progress=True, engine="local")
    assert notebook[1].contents[-1]["text/plain"].startswith("passes: 1 after")


def test_without_a_display_a_run_is_the_same(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw, or a service
    monkeypatch.setattr(sys, "stdout", None)
    assert ran(progress=True).trace.rows[-1] == 2000


@pytest.mark.slow
@pytest.mark.integration
def test_a_real_kernel_shows_the_bar_the_model_and_its_plot():
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = [
        "import numpy as np, kalprox as kp\n"
        "X = np.random.default_rng(0).normal(size=(2000, 2)); y = X @ np.ones(2) + X[:, 0] * X[:, 1]\n"
        "alg = kp.ipm(kp.models.Linear(), gamma=1.0)\n"
        "out = kp.run(alg, alg.init(np.zeros(2), 1.0), X, y, progress=True)",
        "model = kp.KalproxRegressor().fit(X, y); model",
        "ax = model.plot()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # as a user has it
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(env=settings)
    (bar,), (model,), (plot,) = (cell.outputs for cell in notebook.cells)
    assert bar["data"]["text/plain"].startswith("rows: 2,000 of 2,000 after")
    assert "2,000 learned." in model["data"]["text/html"] and "image/png" in plot["data"]
