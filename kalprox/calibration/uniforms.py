"""Uniform numbers that depend on the number of a row in its stream and on its prediction, and on nothing else.

The scores of classes and counts are randomised. A generator with a state would give other scores for other blocks, or
after saving; a seed alone would give the same numbers to the streams of two machines, whose scores would not be
independent when they are merged. So each number is a hash. Of the prediction it takes about five digits: the last ones
depend on the processor, and the scores should not.
"""

from types import ModuleType

import numpy as np

from kalprox.base.arrays import Array

__all__ = ["uniforms"]

_WORD = 32
_DROPPED = np.uint32(7)  # bits of a prediction in single precision, which leaves it 16 after the point


def uniforms(xp: ModuleType, numbers: Array, mean: Array) -> Array:
    """Return a number strictly between 0 and 1 for each row.

    The 32-bit words of the number of the row and one of its prediction, rounded, go through the finaliser of
    MurmurHash3, which changes every bit of the result with probability 1/2 if one bit of the word changes.

    Parameters
    ----------
    xp : module
        numpy or jax.numpy.
    numbers : array of shape (b,)
        Whole numbers: those of the rows in their stream.
    mean : array of shape (b,)
        What was predicted.

    Returns
    -------
    array of shape (b,)

    Examples
    --------
    >>> v = uniforms(np, np.arange(1000.0), np.full(1000, 0.3))
    >>> bool(v.min() > 0), bool(v.max() < 1), round(float(v.mean()), 1)
    (True, True, 0.5)
    """
    with np.errstate(over="ignore"):
        single = (mean + 0.0).astype(np.float32)  # a sum with 0 turns -0 into 0, which is the same prediction
    if xp is np:
        whole = numbers.astype(np.uint64)
        words = [(whole & 0xFFFFFFFF).astype(np.uint32), (whole >> _WORD).astype(np.uint32)]
        predicted = single.view(np.uint32)
    else:
        from jax import lax

        high = xp.floor(numbers / 2.0**_WORD)
        words = [(numbers - high * 2.0**_WORD).astype(np.uint32), high.astype(np.uint32)]
        predicted = lax.bitcast_convert_type(single, np.uint32)
    mixed = xp.full(len(mean), np.uint32(0x9E3779B9))
    for word in (*words, predicted >> _DROPPED):
        mixed = _mixed(mixed ^ word)
    bits = min(_WORD, np.finfo(mean.dtype).nmant + 1)
    return ((mixed >> np.uint32(_WORD - bits)).astype(mean.dtype) + 0.5) * mean.dtype.type(2.0**-bits)


def _mixed(word: Array) -> Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return word ^ (word >> np.uint32(16))
