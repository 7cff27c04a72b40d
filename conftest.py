"""Strict promotion: a silent broadcast or a silent cast between dtypes is an error in the tests.

Hypothesis draws the same examples in every run: a test that turns red has met a change. Only tests marked `integration`
may start processes. Figures of pyplot are drawn without a window, and closed after each test.
"""

import os
import subprocess
import sys

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips its check of array inputs
os.environ.setdefault("MPLBACKEND", "Agg")
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _only_integration_tests_start_processes(request, monkeypatch):
    if request.node.get_closest_marker("integration") is None:
        start = subprocess.Popen.__init__

        def refuse(process, arguments, *more, **options):
            if arguments[0] != "fc-list":  # matplotlib lists the fonts when a machine draws its first figure
                raise AssertionError(f"mark this test with pytest.mark.integration: it starts {arguments}")
            start(process, arguments, *more, **options)

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
