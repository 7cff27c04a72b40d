"""A process that is forked while a thread learns: the child predicts from a whole model, and does not hang."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")]

BEGIN = """
import os, signal, sys, threading, time, warnings
import numpy as np
from kalprox import KalproxClassifier, KalproxRegressor

warnings.simplefilter("ignore")
rng = np.random.default_rng(8)
X = rng.normal(size=(3000, 6))


def child(work):
    '''The exit code of a child that does this; -9 if it hangs.'''
    process = os.fork()
    if process == 0:
        signal.alarm(20)
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
"""

LEARNING = """
models = [KalproxRegressor(), KalproxClassifier()]
y = [X.sum(axis=1) + rng.normal(size=3000), (X[:, 0] + rng.logistic(size=3000) > 0).astype(int)]
models[0].partial_fit(X[:200], y[0][:200])
models[1].partial_fit(X[:200], y[1][:200], classes=[0, 1])
stop = threading.Event()


def learn(model, target):
    i = 0
    while not stop.is_set():
        model.partial_fit(X[i : i + 200], target[i : i + 200])
        i = (i + 200) % 2800


threads = [threading.Thread(target=learn, args=one) for one in zip(models, y)]
for thread in threads:
    thread.start()


def work():
    for model, target in zip(models, y):
        seen = model.n_rows_seen_
        model.predict(X[:1]), model.predict(X[:50])
        model.partial_fit(X[:200], target[:200])
        if seen % 200 or model.n_rows_seen_ != seen + 200:
            return 3  # the model was half-way
    return 0


codes = []
for _ in range(6):
    time.sleep(0.03)
    codes.append(child(work))
stop.set()
for thread in threads:
    thread.join()
before = models[0].n_rows_seen_
models[0].partial_fit(X[:200], y[0][:200])
print(codes, models[0].n_rows_seen_ - before)
"""


def run(script):
    done = subprocess.run([sys.executable, "-c", BEGIN + script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_child_has_whole_models():
    assert run(LEARNING) == "[0, 0, 0, 0, 0, 0] 200"


FITTING = """
model = KalproxRegressor().fit(X, X.sum(axis=1))
begun, go_on = threading.Event(), threading.Event()


class Column:
    '''A target that takes its time to be read.'''

    def __array__(self, dtype=None, copy=None):
        begun.set()
        go_on.wait()
        return X.sum(axis=1)


thread = threading.Thread(target=lambda: model.fit(X, Column()))
thread.start()
begun.wait()


def work():
    try:
        model.predict(X[:3])
    except RuntimeError as error:
        return 0 if "forked while another thread was learning" in str(error) else 4
    return 5


code = child(work)
go_on.set()
thread.join()
print(code, model.predict(X[:3]).shape)
"""


@pytest.mark.slow
def test_a_fork_does_not_wait_for_ever():
    """A model that is learned for long is refused in the child, with what to do; the parent goes on."""
    assert run(FITTING) == "0 (3,)"
