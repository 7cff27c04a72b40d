"""Frames of pandas and polars: their rows as dictionaries, and results in the library of a frame."""

from collections.abc import Iterator
from typing import Any

from kalprox.estimators.frames import frame_kind

__all__ = ["check_frame", "frame_like", "frame_rows", "series_like"]


def check_frame(X: Any) -> None:
    """Raise a TypeError unless X is a frame of pandas or polars."""
    if frame_kind(X) not in ("pandas", "polars"):
        raise TypeError(
            f"X must be a DataFrame of pandas or polars, whose columns have the names of the features; got "
            f"{type(X).__name__}. Give arrays to KalproxRegressor or KalproxClassifier."
        )


def frame_rows(X: Any) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a frame as dictionaries."""
    check_frame(X)
    names = list(X.columns)
    columns = [X[name].to_list() for name in names]
    if not names:
        yield from ({} for _ in range(len(X)))
    yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def series_like(values: list[Any], X: Any) -> Any:
    """Return values as a series of the library of a frame, with its index."""
    if frame_kind(X) == "polars":
        import polars

        return polars.Series(values=values)
    import pandas

    return pandas.Series(values, index=X.index)


def frame_like(columns: dict[Any, list[Any]], X: Any) -> Any:
    """Return columns as a frame of the library of a frame, with its index. Polars names columns by texts only."""
    if frame_kind(X) == "polars":
        import polars

        return polars.DataFrame({str(name): values for name, values in columns.items()})
    import pandas

    return pandas.DataFrame(columns, index=X.index)
