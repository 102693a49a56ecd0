"""A small web site that logs in the Combined Log Format, like a server behind a load balancer."""

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_PAGES: Final = ("/", "/about", "/blog/", "/blog/water-wheels", "/blog/mill-ponds", "/blog/sluice-gates", "/contact")
_ASSETS: Final = {"/style.css": "text/css", "/logo.png": "image/png", "/robots.txt": "text/plain"}
_BROKEN: Final = "/search"


class WebServer:
    """Serves from its own threads until `close`; `write` is called with each line of the log."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        class Handler(_Handler):
            write_line = staticmethod(write)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="web server", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Buffer head and body, to send one segment: a second one would wait 40 ms for the client's delayed ACK.
    wbufsize = -1
    write_line: Callable[[bytes], None]

    def do_GET(self) -> None:
        page = self.path.partition("?")[0]
        if page == _BROKEN and "q=fail" in self.path:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"The search is out of order.\n")
        elif page in _PAGES or page == _BROKEN:
            links = "".join(f'<a href="{other}">{other}</a> ' for other in _PAGES)
            self._answer(HTTPStatus.OK, "text/html", f"<h1>{page}</h1>{links}\n".encode())
        elif page in _ASSETS:
            self._answer(HTTPStatus.OK, _ASSETS[page], b"/* nothing to see */\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._size = len(body)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Write a line in the Combined Log Format, with the client's address from the load balancer."""
        headers = getattr(self, "headers", None) or {}
        client = headers.get("X-Forwarded-For", self.client_address[0])
        moment = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
        status = code.value if isinstance(code, HTTPStatus) else code
        quoted = [
            _escaped(text) for text in (self.requestline, headers.get("Referer", "-"), headers.get("User-Agent", "-"))
        ]
        size = getattr(self, "_size", "-")
        self.write_line(f'{client} - - [{moment}] "{quoted[0]}" {status} {size} "{quoted[1]}" "{quoted[2]}"'.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing else."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
