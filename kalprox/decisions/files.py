"""Saving and loading of bandits, without pickle."""

import math
from os import PathLike
from typing import Any, Self

import numpy as np

from kalprox import model_file
from kalprox.base.tree import Saved, expect, flatten, is_count
from kalprox.decisions.readings import BanditReadings
from kalprox.decisions.settings import arm_names, from_plain
from kalprox.learning.pending import PendingRows
from kalprox.model_file import ModelFileError, Parts, refusing

__all__ = ["BanditFiles"]

_KIND = "Bandit"
_RANDOM = ("state", "inc")  # whole numbers of 128 bits, saved as hexadecimal text


class BanditFiles(BanditReadings):
    """The methods that write a bandit to a file and read it."""

    def save(self, file: str | PathLike[str]) -> None:
        """Write the bandit to a file, atomically and without pickle.

        The file contains the contexts of decisions that wait for their reward and, without forgetting, the last rows of
        each arm, up to max(64, d + 1). It is read back, and the bandit restored from it and compared, before it
        replaces another.

        Parameters
        ----------
        file : str or path-like

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> import tempfile, pathlib
        >>> bandit = Bandit(["a", "b"], random_state=0)
        >>> decision = bandit.sample([1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandit.save(pathlib.Path(folder) / "bandit.kalprox")
        ...     same = Bandit.load(pathlib.Path(folder) / "bandit.kalprox")
        >>> for one in (bandit, same):
        ...     one.reward(decision.key, 1.0)
        >>> bool((same.sample([1.0]).values == bandit.sample([1.0]).values).all())
        True
        """
        model_file.write(file, *self._parts(), lambda header, arrays: self._of(file, header, arrays)._parts())

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Self:
        """Read a bandit that `save` wrote: it goes on as if it had never been saved, with the same random numbers.

        Parameters
        ----------
        file : str or path-like

        Returns
        -------
        Bandit

        Raises
        ------
        ModelFileError
            If the file is not that of a bandit.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Bandit(["a", "b"]).save(pathlib.Path(folder) / "bandit.kalprox")
        ...     Bandit.load(pathlib.Path(folder) / "bandit.kalprox").arms_
        ['a', 'b']
        """
        return cls._of(file, *model_file.read(file))

    def _parts(self) -> Parts:
        """Return the header and the arrays of the file."""
        state: Any = self._rng.bit_generator.state
        header: dict[str, Any] = {
            "estimator": _KIND,
            "settings": self._settings.plain(),
            "arms": self.arms_,
            "numbers": self._numbers,
            "next_number": self._next_number,
            "n_decisions": self.n_decisions_,
            "clock": self._clock,
            "n_features": None if self._fleet is None else self._fleet.p - self._settings.fit_intercept,
            "random": {name: f"{state['state'][name]:x}" for name in _RANDOM}
            | {"has_uint32": state["has_uint32"], "uinteger": state["uinteger"]},
        }
        arrays: dict[str, np.ndarray] = {"n_rows": self._n_rows, "sums": self._sums, "moments": self._moments}
        flatten("pending", self._pending.saved(), header, arrays)
        if self._fleet is not None:
            flatten("fleet", self._fleet.saved(), header, arrays)
        return header, arrays

    @classmethod
    def _of(cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the bandit of a header and arrays; raise a `ModelFileError` that names the file if they do not fit."""
        if (kind := header.get("estimator")) != _KIND:
            raise ModelFileError(f"{file} is not the file of a bandit, but of a {kind}: use {kind}.load.")
        with refusing(f"{file} is the file of a bandit, but not one that this version can read."):
            bandit, saved = cls(header["arms"], **from_plain(header["settings"])), Saved(header, arrays)  # type: ignore[call-arg]
            K, numbers = len(arm_names(header["arms"])), header["numbers"]
            bandit._next_number, bandit.n_decisions_ = saved.count("next_number"), saved.count("n_decisions")
            clock = bandit._clock = header["clock"]
            expect(clock is None or (type(clock) is float and math.isfinite(clock)))
            expect(len(numbers) == K == len(set(numbers)))
            expect(all(is_count(number) and number < bandit._next_number for number in numbers))
            bandit._numbers = numbers
            bandit._n_rows, bandit._sums = saved["n_rows"], saved["sums"]
            expect(bandit._n_rows.shape == bandit._sums.shape == (K,) and np.isfinite(bandit._sums).all())
            expect((bandit._n_rows == bandit._n_rows.round()).all() and (bandit._n_rows >= 0).all())
            bandit._moments = saved["moments"]
            expect(bandit._moments.shape == (3,) and np.isfinite(bandit._moments).all())
            expect(bandit._moments[0] >= bandit._n_rows.sum() and bandit._moments[2] >= 0)
            d = header["n_features"]
            if d is not None:
                expect(is_count(d) and d >= 1 and "fleet.T" in saved)
                expect(arrays["fleet.T"].ndim == 3)
                p = arrays["fleet.T"].shape[1] - 1  # that of the arrays, lest a wrong d take memory
                expect(p == d + bandit._settings.fit_intercept)
                bandit._fleet = bandit._settings.fleet(K, d).restore(saved, "fleet")
                bandit._set_origin()
            width = 0 if bandit._fleet is None else bandit._fleet.p
            bandit._pending = PendingRows.restored(width, saved)
            for key in bandit._pending:
                held = bandit._pending[key]
                expect(type(key) is int and 0 <= key < bandit.n_decisions_)
                expect(held.time is not None and clock is not None and held.time <= clock)
                expect(len(held.issued) == 2 and held.issued[0] in range(bandit._next_number))
            bandit._rng = _generator(header["random"])
        return bandit


def _generator(saved: dict[str, Any]) -> np.random.Generator:
    """Return the random numbers that go on from a saved state."""
    state = {name: int(saved[name], 16) for name in _RANDOM}
    expect(all(0 <= number < 1 << 128 for number in state.values()) and state["inc"] % 2)
    expect(saved["has_uint32"] in (0, 1) and is_count(saved["uinteger"]) and saved["uinteger"] < 1 << 32)
    made = np.random.PCG64()
    whole: Any = {"bit_generator": "PCG64", **saved, "state": state}
    made.state = whole
    return np.random.Generator(made)
