"""Arguments of the wrong kind: an error that speaks of them, never an AttributeError or IndexError from within."""

import copy
import inspect
import random
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.exceptions import NotFittedError

import kalprox as kp
from kalprox import KalproxClassifier
from kalprox.adapters.river import RiverClassifier, RiverRegressor
from kalprox.cli import main


class Thing:
    pass


BAD = [
    *(None, "text", "", 3, -1, 0, 1.5, float("nan"), True, 1j, 10**30, b"x", Thing(), Thing, len, range(3)),
    *([], {}, (), {"a": 1}, [[1, 2], [3]], np.empty(0), np.empty((0, 3)), np.ones(3), -np.ones((4, 3))),
    *(np.ones((2, 3, 4)), np.array(["a", "b"]), np.array([None, 1], object), np.float32(2)),
]
X = np.random.default_rng(61).normal(size=(40, 3))
Y = X @ [1.0, 2.0, 0.0] + 0.1 * np.random.default_rng(62).normal(size=40)
GOOD = {"X": X, "y": Y, "x": X[0], "theta": np.zeros(3), "d": 3, "source": (X, Y), "start": np.zeros(3), "gamma": 1.0}
GOOD |= {"model": kp.models.Linear(), "regularizer": kp.regularizers.Ridge(1.0)}
MODULES = [
    kp,
    kp.models,
    kp.regularizers,
    kp.likelihoods,
    kp.covariance,
    kp.decisions,
    kp.forgetting,
    kp.structures,
    kp.penalties,
]


def functions():
    """All functions and classes with a public name."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in MODULES
        for name in module.__all__
        if callable(getattr(module, name))
    }


def objects():
    """Objects whose public methods are called."""
    algorithm = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(1.0))
    regressor = kp.KalproxRegressor(penalty="ridge").fit(X, Y)
    return [
        *(
            regressor,
            kp.KalproxClassifier().fit(X, Y > 0),
            kp.KalproxRegressor(penalty="ridge"),
            kp.KalproxClassifier(),
        ),
        kp.KalproxRegressor(likelihood="poisson").partial_fit(X, np.round(np.abs(Y))),
        *(algorithm, algorithm.init(np.zeros(3), 1.0), kp.Information.from_rows(X, Y), regressor.diagnostics_),
        *(kp.regularizers.Ridge(1.0), kp.regularizers.L1(1.0), kp.regularizers.Zero(), kp.regularizers.Huber(1.0, 1.0)),
        *(
            kp.likelihoods.Gaussian(),
            kp.likelihoods.Bernoulli(),
            kp.likelihoods.Categorical(),
            kp.likelihoods.Poisson(),
        ),
        *(kp.likelihoods.Huber(), kp.likelihoods.NegativeBinomial(1.0), regressor.diagnostics_.verdict()),
        *smaller_objects(),
    ]


def smaller_objects():
    """Regularizers, likelihoods, penalties, scores and verdicts of every kind, and the models for River."""
    r, likelihoods, p = kp.regularizers, kp.likelihoods, kp.penalties
    classes = [KalproxClassifier().fit(X, y) for y in (Y > 0, np.digitize(Y, [-1.0, 1.0]))]
    scored = [*classes, kp.KalproxRegressor(likelihood="poisson").fit(X, np.abs(Y).round())]
    scores = [model.diagnostics_ for model in scored]
    return [
        *(
            r.ElasticNet(1.0, 1.0),
            r.GroupL1(1.0, [0, 0, 1]),
            r.Box(0.0, 1.0),
            r.Quadratic(np.eye(3)),
            r.Cauchy(1.0, 1.0),
        ),
        *(r.SmoothL1(1.0, 0.1), r.Weighted(r.L1(1.0), np.ones(3)), kp.models.Linear(), kp.models.GLM("sigmoid")),
        *(likelihoods.Student(4.0), likelihoods.Contaminated(), likelihoods.QuasiPoisson()),
        *(p.Ridge(), p.L1(), p.ElasticNet(0.5), p.SmoothL1(1.0), p.Group([0, 0, 1]), p.Box(0, 1)),
        *(*scores, *(score.verdict() for score in scores), LearnsMany(), ClassifiesMany()),
    ]


class LearnsMany(RiverRegressor):
    mutate = None  # River's own


class ClassifiesMany(RiverClassifier):
    mutate = None


def drawn(function, rng):
    """Arguments of a call: some as they should be, the others of any kind."""
    args, options = [], {}
    for p in inspect.signature(function).parameters.values():
        if p.kind == p.VAR_POSITIONAL:
            args += rng.choices(BAD, k=rng.randint(0, 2))
        elif p.kind != p.VAR_KEYWORD and (p.default is p.empty or rng.random() < 0.3):
            value = GOOD[p.name] if p.name in GOOD and rng.random() < 0.6 else rng.choice(BAD)
            if p.default is p.empty and p.kind != p.KEYWORD_ONLY:
                args.append(value)
            else:
                options[p.name] = value
    return args, options


def wrong(label, function, /, *args, **options):
    """What is wrong with the error of a call, as a list of at most one line."""
    try:
        function(*args, **options)
    except NotFittedError:
        pass
    except (AttributeError, IndexError) as error:
        return [f"{label}(*{args!r}, **{options!r}): {type(error).__name__}: {error}"]
    except Exception:
        pass
    return []


def walk(seed, n, folder, monkeypatch):
    monkeypatch.chdir(folder)  # where files with odd names may be written
    rng, found = random.Random(seed), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in functions().items():
            for _ in range(n):
                args, options = drawn(function, rng)
                found += wrong(name, function, *args, **options)
        for thing in objects():
            for name in dir(type(thing)):
                if name.startswith("_") or not callable(getattr(type(thing), name, None)):
                    continue
                for _ in range(n):
                    method = getattr(copy.deepcopy(thing), name)
                    args, options = drawn(method, rng)
                    found += wrong(f"{type(thing).__name__}.{name}", method, *args, **options)
        for kind, y in ((kp.KalproxRegressor, Y), (kp.KalproxClassifier, Y > 0)):
            names = list(inspect.signature(kind).parameters)
            for _ in range(8 * n):
                settings = {rng.choice(names): rng.choice(BAD) for _ in range(rng.randint(1, 2))}
                found += wrong(f"{kind.__name__}.fit", lambda: kind(**settings).fit(X, y))  # noqa: B023
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "n"), [(63, 1), (64, 10)])
def test_no_public_name_fails_from_within(seed, n, tmp_path, monkeypatch):
    assert walk(seed, n, tmp_path, monkeypatch) == []


@pytest.mark.parametrize("model", [RiverRegressor(), RiverClassifier(structure="diagonal", hash_bits=6)])
def test_models_for_river_say_that_they_need_frames(model):
    for given in (X, [{"a": 1.0}], 3):
        with pytest.raises(TypeError, match=r"X must be a DataFrame of pandas or polars.* got (ndarray|list|int)"):
            model.learn_many(given, Y > 0)
    with pytest.raises(TypeError, match="X must be a DataFrame"):
        model.predict_many(X)


def test_merge_and_fit_source_say_what_they_need():
    model = kp.KalproxRegressor(penalty="ridge").fit(X, Y)
    with pytest.raises(TypeError, match="other must be a fitted KalproxRegressor; got int 3"):
        model.merge(3)
    with pytest.raises(TypeError, match="must be an Information; got int 3"):
        kp.merge(3)
    with pytest.raises(
        TypeError, match=r"source must have a method fold.* got ndarray. To fit arrays or frames, use fit"
    ):
        model.fit_source(X, 3)
    with pytest.raises(TypeError, match="alg must be an Algorithm"):
        kp.run(kp.models.Linear(), None, X, Y)


@pytest.mark.parametrize(
    "likelihood",
    [
        kp.likelihoods.Huber(threshold=-1),
        kp.likelihoods.Huber(scale=-1.0),  # whose coefficients were all zero
        kp.likelihoods.Student(dof=0),
        kp.likelihoods.Student(scale=-1.0),
        kp.likelihoods.Contaminated(scale=0.0),
        kp.likelihoods.NegativeBinomial(dispersion=-1.0),
    ],
    ids=repr,
)
def test_parameters_of_a_likelihood_that_must_be_positive_are(likelihood):
    with pytest.raises(ValueError, match=f"of {type(likelihood).__name__} must be finite and > 0"):
        kp.KalproxRegressor(likelihood=likelihood).fit(X, abs(Y).round())


@pytest.mark.parametrize(("kind", "needs"), [("time", "half_life"), ("window", "rows"), ("walk", "q")])
def test_a_kind_of_forgetting_without_its_parameter_is_told_which(tmp_path, kind, needs):
    (tmp_path / "a.csv").write_text("t,x,y\n1,1,2\n2,2,3\n3,4,5\n")
    command = ["fit", str(tmp_path / "a.csv"), "--target", "y", "--time", "t", "--forget", kind]
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 2 and f"{kind} needs a parameter, as in {kind},{needs}=NUMBER" in found.output
