"""Jobs that need no JAX, each as numbers: a process without JAX writes them to a file, for `test_without_jax.py`."""

import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from click.testing import CliRunner

import kalprox as kp
from kalprox.adapters.river import RiverClassifier, RiverRegressor
from kalprox.cli import main
from kalprox.decisions import Bandit

JOBS = {}
LINEAR, SIGMOID = kp.models.Linear(), kp.models.GLM("sigmoid")
RIDGE, SMOOTH = kp.regularizers.Ridge(1e-3), kp.regularizers.SmoothL1(1e-3, 0.1)
ALGORITHMS = {
    "pipg": lambda: kp.pipg(LINEAR, RIDGE, gamma=1.0, q=1e-5),
    "pipg-link": lambda: kp.pipg(SIGMOID, SMOOTH, gamma=1.0),
    "ipm": lambda: kp.ipm(LINEAR, gamma=4.0),
    "ipm-link": lambda: kp.ipm(kp.models.GLM("tanh"), gamma=4.0),
    "ipg": lambda: kp.ipg(LINEAR, RIDGE, gamma=0.1),
    "ipg-link": lambda: kp.ipg(SIGMOID, RIDGE, gamma=0.5, metric=lambda k: 1.0),
    "sgd": lambda: kp.sgd(LINEAR, RIDGE, alpha0=0.01, alpha1=1e-3),
    "sgd-link": lambda: kp.sgd(SIGMOID, kp.regularizers.Cauchy(1e-3, 1.0), alpha0=0.1, alpha1=1e-3),
    "filter": lambda: kp.proximal_filter(LINEAR, kp.regularizers.L1(3.0), gamma=None),
    "filter-link": lambda: kp.proximal_filter(SIGMOID, kp.regularizers.Ridge(1.0)),
    "filter-diagonal": lambda: kp.proximal_filter(SIGMOID, kp.regularizers.Zero(), structure="diagonal"),
    "filter-low-rank": lambda: kp.proximal_filter(LINEAR, RIDGE, structure=kp.structures.LowRank(2)),
}


def job(function):
    JOBS[function.__name__] = function
    return function


def rows(n=400):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, 0.5 + X @ [1.0, 0.0, -0.5] + 0.3 * rng.normal(size=n)


def regression(n=400, batches=0, **settings):
    """What a regressor says about rows that it has learned at once or in batches."""
    X, y = rows(n)
    likelihood = settings.get("likelihood", "")
    y = np.floor(np.exp(y)) if "poisson" in likelihood or "negative" in likelihood else y
    y = np.where(np.arange(n) % 20 == 3, 9.0, y) if likelihood in ("huber", "student", "contaminated") else y
    y = 1 / (1 + np.exp(-y)) if settings.get("link") == "sigmoid" else y
    if settings.get("missing", "raise") != "raise":
        X[::7, 1] = np.nan
    model = kp.KalproxRegressor(**({"penalty": "ridge"} | settings))
    if batches:
        for part in np.array_split(np.arange(n), batches):
            model.partial_fit(X[part], y[part])
    else:
        model.fit(X, y)
    return readings(model, rows(20)[0])


def readings(model, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kp.structures.UnderstatedWarning)
        return [model.coef_, model.coef_std_, model.predict(X), *model.predict_interval(X)]


def classification(classes, batches=0):
    X, y = rows()
    y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model = kp.KalproxClassifier()
    if batches:
        for part in np.array_split(np.arange(len(X)), batches):
            model.partial_fit(X[part], y[part], classes=range(classes))
    else:
        model.fit(X, y)
    return [model.coef_, model.predict_proba(X[:20])]


for name, settings in {
    "linear": {},
    "unpenalised": {"penalty": None},
    "ridge_auto": {"alpha": "auto"},
    "l1": {"penalty": "l1", "alpha": 20.0},
    "smooth_l1": {"penalty": "smooth_l1"},
    "link": {"link": "sigmoid"},
    "poisson": {"likelihood": "poisson"},
    "negative_binomial": {"likelihood": "negative-binomial"},
    "huber": {"likelihood": "huber"},
    "student": {"likelihood": "student"},
    "noise_by_inputs": {"noise": "inputs"},
    "robust_errors": {"coef_cov": "robust"},
    "gaps": {"missing": "impute"},
    "structure": {"structure": "diagonal"},
}.items():
    JOBS[name] = lambda settings=settings: regression(**settings)
for name, settings in {
    "stream": {},
    "stream_link": {"link": "sigmoid"},
    "stream_poisson": {"likelihood": "poisson"},
    "stream_huber": {"likelihood": "huber"},
    "forgetting": {"forget": 0.98},
    "forgetting_auto": {"forget": "auto"},
    "stream_gaps": {"missing": "marginalize"},
    "stream_low_rank": {"structure": kp.structures.LowRank(2), "likelihood": "poisson"},
}.items():
    JOBS[name] = lambda settings=settings: regression(batches=8, **settings)
for name in ALGORITHMS:
    JOBS[name] = lambda name=name: algorithm(ALGORITHMS[name]())
for classes in (2, 3):
    JOBS[f"{classes}_classes"] = lambda classes=classes: classification(classes)
    JOBS[f"stream_{classes}_classes"] = lambda classes=classes: classification(classes, 8)


def algorithm(alg):
    """An algorithm by its steps, and by `kp.run`, with the predictions scored where it states its uncertainty."""
    X, y = rows(300)
    state = alg.init(np.zeros(3), 0.5)
    states = hasattr(state, "var")
    out = kp.run(alg, state, X, y, record_every=70, calibrate=states)
    found = [out.state.mean, out.trace.rows, out.trace.mean]
    if states:
        score = out.calibration
        found += [out.trace.var, score.squares, score.log_score, score.covered, alg.predict(out.state, X[:5]).std]
    state = alg.init(np.zeros(3), 0.5)
    for part in np.split(np.arange(300), 10) if alg.by_block else range(300):
        state = alg.step(state, X[part], y[part])
    return [*found, state.mean]


@job
def prequential():
    X, y = rows()
    return [
        a[10:] for a in kp.KalproxRegressor(likelihood="huber", penalty="ridge").partial_fit(X, y).prequential(X, y)
    ]


@job
def change_points():
    X, y = rows(600)
    y[300:] += 4 * X[300:, 0]
    model = kp.KalproxRegressor(change_points=True, penalty="ridge")
    for part in np.array_split(np.arange(600), 20):
        model.partial_fit(X[part], y[part])
    assert len(model.change_points_) == 1
    return readings(model, X[:20])


@job
def saved_and_merged():
    X, y = rows()
    found = []
    with TemporaryDirectory() as folder:
        for settings in ({}, {"likelihood": "poisson"}):
            file, counts = Path(folder) / "model.kalprox", np.floor(np.exp(y)) if settings else y
            first, second = (
                kp.KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[i::2], counts[i::2])
                for i in (0, 1)
            )
            first.save(file)
            first = kp.KalproxRegressor.load(file)
            found += readings(first, X[:20])
            if not settings:
                found += readings(first.merge(second), X[:20])
    return found


@job
def commands():
    X, y = rows()
    found = []
    with TemporaryDirectory() as folder:
        file, model, out = (str(Path(folder) / name) for name in ("rows.csv", "model.kalprox", "out.csv"))
        Path(file).write_text("a,b,c,y\n" + "\n".join(",".join(map(repr, row)) for row in np.c_[X, y].tolist()) + "\n")
        for arguments in (
            ["fit", file, "--target", "y", "--out", model],
            ["show", model],
            ["predict", model, file, "--out", out],
        ):
            assert_done(arguments)
        found.append(np.loadtxt(out, delimiter=",", skiprows=1))
        text = Path(file).read_text()
        done = assert_done(["stream", "--target", "y", "--to", "csv", "--infer-rows", "50"], input=text)
        lines = [line.split(",")[:2] for line in done.stdout.splitlines()[100:200]]
        found.append(np.array(lines, float))
    return found


def assert_done(arguments, **options):
    done = CliRunner().invoke(main, arguments, **options)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done


@job
def river():
    X, y = rows(200)
    regressor, classifier, found = RiverRegressor(forget=0.98), RiverClassifier(), []
    for x, target in zip(X, y, strict=True):
        x = dict(zip("abc", x.tolist(), strict=True))
        found.append([regressor.predict_one(x), classifier.predict_proba_one(x).get(True, 0.5)])
        regressor.learn_one(x, float(target))
        classifier.learn_one(x, bool(target > 0.5))
    return [np.array(found)]


@job
def bandit():
    X, _ = rows(200)
    bandit, taken = Bandit(["a", "b"], random_state=0), []
    for x in X:
        arm = bandit.sample(x).arm
        bandit.update([x], [arm], [x[0] if arm == "a" else x[1]])
        taken.append(arm == "a")
    return [bandit.coef_, np.array(taken)]


def write(file, names):
    """Run the jobs with these names, and write their numbers to a file of NumPy."""
    found = {f"{name} {i}": np.asarray(a, float) for name in names for i, a in enumerate(JOBS[name]())}
    assert "jax" not in sys.modules
    np.savez(file, **found)
