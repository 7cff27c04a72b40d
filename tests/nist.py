"""The 27 nonlinear reference problems of NIST's StRD: data, starts, certified answers, models.

The files in data/nist are NIST's own; the first lines of each say on which lines the rest is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

FOLDER = Path(__file__).parent / "files" / "nist"


@dataclass(frozen=True)
class Problem:
    """One data set with NIST's certified answer, which is good to eleven digits."""

    name: str
    fn: Callable  # fn(theta, x), a JAX function of one row
    X: np.ndarray  # (n,), or (n, 2) for Nelson
    y: np.ndarray  # (n,)
    starts: np.ndarray  # (2, d): the far one, then the near one
    certified: np.ndarray  # (d,)
    std: np.ndarray  # (d,), standard errors of the certified parameters
    rss: float
    residual_std: float
    dof: int


def load(name: str) -> Problem:
    """Read one of NIST's files."""
    lines = (FOLDER / f"{name}.dat").read_text().splitlines()

    def table(title: str) -> list[str]:
        for line in lines[:10]:
            if found := re.search(rf"{title}\s+\(lines\s+(\d+)\s+to\s+(\d+)\)", line):
                first, last = map(int, found.groups())
                return lines[first - 1 : last]
        raise ValueError(f"{name}.dat does not say where its {title!r} are.")

    def quantity(title: str) -> float:
        return float(next(line for line in lines if line.startswith(title)).split(":")[1])

    parameters = np.array([line.split("=")[1].split() for line in table("Starting Values")], dtype=float)
    data = np.array([line.split() for line in table("Data")], dtype=float)
    y, X = data[:, 0], data[:, 1:]
    return Problem(
        name=name,
        fn=MODELS[name],
        X=X if X.shape[1] > 1 else X[:, 0],
        y=np.log(y) if name == "Nelson" else y,
        starts=parameters[:, :2].T,
        certified=parameters[:, 2],
        std=parameters[:, 3],
        rss=quantity("Residual Sum of Squares"),
        residual_std=quantity("Residual Standard Deviation"),
        dof=len(y) - len(parameters),  # Rat43.dat says 9; its certified residual deviation has 15 - 4
    )


def digits(estimate: np.ndarray, certified: np.ndarray) -> float:
    """Correct significant digits, the worst of all components: -log10 |relative error|, from 0 to 11."""
    error = np.max(np.abs(estimate - certified) / np.abs(certified))
    if not np.isfinite(error):
        return 0.0
    return float(np.clip(-np.log10(max(error, 1e-300)), 0.0, 11.0))


def _saturation(b, x):
    return b[0] * (1 - jnp.exp(-b[1] * x))


def _misra1b(b, x):
    return b[0] * (1 - (1 + b[1] * x / 2) ** -2)


def _misra1c(b, x):
    return b[0] * (1 - (1 + 2 * b[1] * x) ** -0.5)


def _misra1d(b, x):
    return b[0] * b[1] * x / (1 + b[1] * x)


def _chwirut(b, x):
    return jnp.exp(-b[0] * x) / (b[1] + b[2] * x)


def _lanczos(b, x):
    return b[0] * jnp.exp(-b[1] * x) + b[2] * jnp.exp(-b[3] * x) + b[4] * jnp.exp(-b[5] * x)


def _gauss(b, x):
    peaks = b[2] * jnp.exp(-(((x - b[3]) / b[4]) ** 2)) + b[5] * jnp.exp(-(((x - b[6]) / b[7]) ** 2))
    return b[0] * jnp.exp(-b[1] * x) + peaks


def _danwood(b, x):
    return b[0] * x ** b[1]


def _kirby2(b, x):
    return (b[0] + x * (b[1] + x * b[2])) / (1 + x * (b[3] + x * b[4]))


def _cubic_over_cubic(b, x):
    return (b[0] + x * (b[1] + x * (b[2] + x * b[3]))) / (1 + x * (b[4] + x * (b[5] + x * b[6])))


def _nelson(b, x):
    return b[0] - b[1] * x[0] * jnp.exp(-b[2] * x[1])


def _mgh09(b, x):
    return b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3])


def _mgh10(b, x):
    return b[0] * jnp.exp(b[1] / (x + b[2]))


def _mgh17(b, x):
    return b[0] + b[1] * jnp.exp(-x * b[3]) + b[2] * jnp.exp(-x * b[4])


def _roszman1(b, x):
    return b[0] - b[1] * x - jnp.arctan(b[2] / (x - b[3])) / jnp.pi


def _enso(b, x):
    def wave(period, cosine, sine):
        phase = 2 * jnp.pi * x / period
        return cosine * jnp.cos(phase) + sine * jnp.sin(phase)

    return b[0] + wave(12.0, b[1], b[2]) + wave(b[3], b[4], b[5]) + wave(b[6], b[7], b[8])


def _rat42(b, x):
    return b[0] / (1 + jnp.exp(b[1] - b[2] * x))


def _rat43(b, x):
    return b[0] / (1 + jnp.exp(b[1] - b[2] * x)) ** (1 / b[3])


def _eckerle4(b, x):
    return b[0] / b[1] * jnp.exp(-(((x - b[2]) / b[1]) ** 2) / 2)


def _bennett5(b, x):
    return b[0] * (b[1] + x) ** (-1 / b[2])


MODELS: dict[str, Callable] = {  # in NIST's order: lower, average, higher level of difficulty
    "Misra1a": _saturation,
    "Chwirut2": _chwirut,
    "Chwirut1": _chwirut,
    "Lanczos3": _lanczos,
    "Gauss1": _gauss,
    "Gauss2": _gauss,
    "DanWood": _danwood,
    "Misra1b": _misra1b,
    "Kirby2": _kirby2,
    "Hahn1": _cubic_over_cubic,
    "Nelson": _nelson,
    "MGH17": _mgh17,
    "Lanczos1": _lanczos,
    "Lanczos2": _lanczos,
    "Gauss3": _gauss,
    "Misra1c": _misra1c,
    "Misra1d": _misra1d,
    "Roszman1": _roszman1,
    "ENSO": _enso,
    "MGH09": _mgh09,
    "Thurber": _cubic_over_cubic,
    "BoxBOD": _saturation,
    "Rat42": _rat42,
    "MGH10": _mgh10,
    "Eckerle4": _eckerle4,
    "Rat43": _rat43,
    "Bennett5": _bennett5,
}
