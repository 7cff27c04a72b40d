"""Transcripts in documents: their commands are run, and what they print is compared with the page or written to it.

`python -m tests.transcript docs/tutorials/from_a_messy_file.md` runs the blocks of a page in their order, in one new
folder, and rewrites the outputs. A block is Python that is run (python), commands after "$ " (console), or Python with
its results (pycon).
"""

import ast
import contextlib
import io
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["run"]

ROOT = Path(__file__).parents[1]

_ALL_DIGITS = re.compile(r"-?\d+\.\d{12,}(?:e[-+]\d+)?")
_PROGRESS = re.compile(r" *\d+%  (pass \d+, )?[\d,]+ rows")


def run(page: str, scope: dict[str, Any] | None = None) -> str:
    """Return the page with the outputs of its commands as they are now; the names that it defines go to `scope`.

    The cells of a notebook ({code-cell} python) are run too; the site shows their results.
    """
    scope = {} if scope is None else scope
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pattern = re.compile(r"```(python|\{code-cell\} python|console|pycon)\n(.*?)```", flags=re.S)
        return pattern.sub(lambda found: _block(*found.groups(), scope), page)


def _block(kind: str, text: str, scope: dict[str, Any]) -> str:
    if kind.endswith("python"):
        exec(text, scope)
    else:
        text = _as_it_was(text, "".join(_commands(text) if kind == "console" else _statements(text, scope)))
    return f"```{kind}\n{text}```"


def _as_it_was(before: str, now: str) -> str:
    """Return what is printed now, with the digits of the page where a number of all its digits agrees to ten of them.

    The last digits depend on the machine.
    """
    if _ALL_DIGITS.sub("", before) != _ALL_DIGITS.sub("", now):
        return now
    known = iter(_ALL_DIGITS.findall(before))

    def number(found: re.Match[str]) -> str:
        old = next(known)
        return old if math.isclose(float(old), float(found[0]), rel_tol=1e-10) else found[0]

    return _ALL_DIGITS.sub(number, now)


def _commands(text: str) -> Iterator[str]:
    """Each command and what it prints, to standard output and then to standard error.

    Lines of progress, which only appear where a command takes more than five seconds, are left out.
    """
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    for line in re.findall(r"^\$ (.*)\n", text, flags=re.M):
        command = re.sub(r"^kalprox ", f"{sys.executable} -m kalprox ", line)
        done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", env=environment)
        printed = (done.stdout + done.stderr).replace(f"{Path.cwd()}{os.sep}", "")
        lines = [part for part in printed.splitlines() if not _PROGRESS.match(part)]
        yield f"$ {line}\n" + "".join(f"{part.rstrip()}\n" for part in lines)
        if done.returncode:
            yield f"(exit code {done.returncode})\n"


def _statements(text: str, scope: dict[str, Any]) -> Iterator[str]:
    """Each statement and its value, as an interactive session shows them."""
    for line in re.findall(r"^>>> (.*)\n", text, flags=re.M):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Interactive(ast.parse(line).body), "<page>", "single"), scope)
        yield f">>> {line}\n{printed.getvalue()}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(run(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
