"""A description of the machine that runs the benchmarks."""

import os
import platform
import re
from pathlib import Path
from typing import Any

__all__ = ["describe", "load"]


def load() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes; above 1, other processes were running."""
    return [round(value, 2) for value in os.getloadavg()]


def describe() -> dict[str, Any]:
    cpu = _cpu()
    words = f"{os.cpu_count()}-cores-{re.sub(r'[^a-z0-9]+', '-', cpu.lower()).strip('-')}"
    return {
        "words": words[:48].strip("-"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_before": load(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return re.sub(r"\(R\)|\(TM\)|CPU|@.*", "", name).strip()
