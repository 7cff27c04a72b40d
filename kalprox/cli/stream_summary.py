"""What `kalprox stream` says at its end, and the position that its checkpoint has."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from kalprox import model_file
from kalprox.base.text import count, plain_number
from kalprox.cli.terminal import echo
from kalprox.jobs.stream import StreamRun
from kalprox.model_file import ModelFileError


def say_position(checkpoint: Path | None) -> None:
    """Print the position that a checkpoint has; that of the first row if there is no checkpoint yet."""
    if checkpoint is None:
        raise click.UsageError("--position needs --checkpoint, the file that says it.")
    try:
        header, _ = model_file.read(checkpoint)
    except FileNotFoundError:
        header = {"stream": {"position": {"row": 0, "offset": 0}}}
    try:
        at = header["stream"]["position"]
        echo(json.dumps({"row": at["row"], "offset": at["offset"]}))
    except (KeyError, TypeError):
        raise ModelFileError(f"{checkpoint} is no checkpoint of a stream.") from None


def event_of(end: StreamRun) -> dict[str, Any]:
    """The fields of the event `done` of a stream."""
    counts, model = end.counts, end.fitted
    p50, p99 = _latency(end)
    return {
        "rows": end.position.row,
        "offset": end.position.offset,
        "bad": counts.bad,
        "learned": counts.learned + counts.late,
        "predicted": counts.predicted,
        "waiting": len(end.pending),
        "dropped": counts.dropped,
        "cut": end.cut,
        "error": counts.error,
        "coverage": counts.coverage,
        "rows_per_second": round(end.answered / max(end.seconds, 1e-9)),
        "latency_p50": p50,
        "latency_p99": p99,
        "headline": None if model is None else model.headline(in_time=True).to_json(),
    }


def _latency(end: StreamRun) -> tuple[float, float]:
    """The median and the 99th percentile of the time from the arrival of one of the last rows to its answer."""
    p50, p99 = np.quantile(end.latencies, (0.5, 0.99)).tolist() if end.latencies else (np.nan, np.nan)
    return p50, p99


def cut_short(end: StreamRun, checkpoint: Path | None) -> str:
    """What is said of an input that ends inside a row."""
    text = f"! The input ends inside a row, whose first {count(end.cut, 'byte')} were neither answered nor learned. "
    if checkpoint is None:
        return text + "End the last row with a newline."
    return text + "A stream that resumes takes the row when it is whole, with its newline."


def summary(end: StreamRun, level: float, out: Path | None, checkpoint: Path | None) -> list[str]:
    """What became of the rows, in sentences."""
    counts, parts, model, waiting = end.counts, list[str](), end.fitted, len(end.pending)
    parts.append(f"{count(counts.learned + counts.late, 'row')} learned, {counts.late:,} of them by a late target")
    parts.append(f"{counts.predicted:,} predicted only, {waiting:,} waiting for a target, {counts.bad:,} bad")
    lines = [f"{count(end.position.row, 'row')}: {', '.join(parts)}."]
    if counts.dropped:
        lines.append(f"! {count(counts.dropped, 'row')} dropped while waiting for a target. Hold more with --wait.")
    if counts.judged and model is not None and not model.columns.classes:
        lines.append(
            f"Error of {counts.judged:,} predictions issued: RMSE {plain_number(counts.error)}; {level:.0%} intervals "
            f"covered {counts.coverage:.1%}."
        )
    elif counts.judged:
        lines.append(f"{1 - counts.squares / counts.judged:.1%} of {counts.judged:,} classes predicted were right.")
    if end.answered:
        p50, p99 = (1000 * seconds for seconds in _latency(end))
        rate = end.answered / max(end.seconds, 1e-9)
        lines.append(
            f"{rate:,.0f} rows a second; a row is answered {p50:.2f} ms (median; 99%: {p99:.2f} ms) after it came and "
            "the rows before it were learned."
        )
    if model is None:
        return [*lines, "No row has been learned, so that there is no model to save."]
    lines.append(str(model.headline(in_time=True)))
    if waiting and out is not None:
        waits = f"{count(waiting, 'row')} that wait for a target"
        lines.append(f"! {out} does not hold the {waits}" + ("." if checkpoint is None else f"; {checkpoint} does."))
    if out is None and checkpoint is None:
        lines.append("The model is not kept: give --out, or --checkpoint.")
    return [*lines, *(str(file) for file in (out, checkpoint) if file is not None and file.exists())]
