"""A page that shows how a job goes on: served on this machine alone, and for reading alone.

The page polls one JSON document. It refers to nothing outside of itself, and puts text into the page as text, so that
names of columns cannot be code. A request whose Host is not this address is refused, so that no other site can lead a
browser here under a name of its own.
"""

import base64
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any, Self

from kalprox.pages.page import to_json

_HOST = "127.0.0.1"
_PATIENCE = 10.0  # seconds that a client may take to send a request


class LivePage:
    """Serves a page about a job inside `with LivePage(state, port) as page`.

    Parameters
    ----------
    state : callable
        Returns what the page shows, in the types of `kalprox.pages.page.to_json`. It is called in another thread.
    port : int
        The port on 127.0.0.1; 0 picks a free one.

    Attributes
    ----------
    address : str
        The URL of the page.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> with LivePage(lambda: {"rows": 3}, 0) as page:
    ...     urlopen(page.address + "state.json").read()
    b'{"rows": 3}'
    """

    def __init__(self, state: Callable[[], Mapping[str, Any]], port: int) -> None:
        self.state = state
        try:
            self._server = _Server((_HOST, port), _Handler)
        except OSError as error:
            raise OSError(
                f"The page cannot be served on port {port}: {error.strerror}. Choose another --watch."
            ) from error
        self._server.live = self
        self.port = self._server.server_address[1]
        self.address = f"http://{_HOST}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="kalprox-page")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    @cached_property
    def html(self) -> bytes:
        """The page, with its style and its script."""
        folder = files(__package__)
        text = {name: (folder / name).read_text(encoding="utf-8") for name in ("page.css", "live.html", "live.js")}
        page = text["live.html"].replace("/* style */", text["page.css"]).replace("/* script */", text["live.js"])
        return page.encode()

    @cached_property
    def policy(self) -> str:
        """What the browser may load: this script, this style, and the state; nothing else, from nowhere else."""
        script = self.html.split(b"<script>")[1].split(b"</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        return (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def content(self, path: str) -> tuple[str, bytes] | None:
        """The media type and the bytes of a path; None if there is nothing."""
        if path == "/":
            return "text/html; charset=utf-8", self.html
        if path == "/state.json":
            return "application/json", json.dumps(to_json(self.state()), allow_nan=False).encode()
        return None


class _Server(ThreadingHTTPServer):
    live: LivePage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; report other errors."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE
    server_version, sys_version = "kalprox", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in [f"{name}:{self.server.live.port}" for name in (_HOST, "localhost")]:
            return self._answer(403, "text/plain", b"This page is served as 127.0.0.1 only.\n")
        found = self.server.live.content(self.path.partition("?")[0])
        if found is None:
            return self._answer(404, "text/plain", b"There is no such page.\n")
        return self._answer(200, *found)

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(405, "text/plain", b"This page is for reading only.\n", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_CONNECT = do_TRACE = _refuse

    def _answer(self, code: int, kind: str, content: bytes, **headers: str) -> None:
        self.send_response(code)
        headers |= {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.live.policy,
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is for the job."""
