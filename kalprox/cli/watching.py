"""The page of `--watch`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalprox.jobs.stream import StreamRun

__all__ = ["watched"]

_SWITCH = 0.0005  # seconds after which a thread that serves the page lets the stream go on


@contextmanager
def watched(run: "StreamRun", port: int) -> Iterator[str]:
    """Serve a page about a stream on this machine, and yield its address."""
    from kalprox.jobs.stream_view import StreamView
    from kalprox.pages.live import LivePage

    sys.setswitchinterval(_SWITCH)
    with StreamView(run) as view, LivePage(view.state, port) as page:
        yield page.address
