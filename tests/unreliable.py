"""A proxy in front of an S3 server that refuses requests, and loses the answers to others.

It is a process of its own, because delta-rs does not let other threads of a process run while it waits for a server.
"""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["disturbed", "unreliable"]

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_OWN = {"connection", "transfer-encoding", "date", "server", "content-length"}
_STORM = 10
"""How many requests a storm refuses."""
_COUNT = "/-disturbed"


class _Weather:
    def __init__(self, storms: float, resets: float) -> None:
        self._random, self._lock = random.Random(0), threading.Lock()
        self._storms, self._resets, self._left = storms, resets, 0
        self.count = 0

    def refuses(self) -> bool:
        with self._lock:
            if self._left == 0 and self._random.random() < self._storms:
                self._left = _STORM
            refuses = self._left > 0
            self._left -= refuses
            self.count += refuses
            return refuses

    def loses(self) -> bool:
        with self._lock:
            loses = self._random.random() < self._resets
            self.count += loses
            return loses


def _serve(endpoint: str, weather: _Weather) -> None:
    host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def pass_on(self) -> None:
            if self.path == _COUNT:
                self.answer(200, {}, str(weather.count).encode())
                return
            chunked = self.headers.get("Transfer-Encoding") == "chunked"  # PyArrow uploads so
            body = self.chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if weather.refuses():
                self.answer(503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
                return
            server = http.client.HTTPConnection(host, port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            server.request(self.command, self.path, body, headers)
            response = server.getresponse()
            answer = response.read()
            length = response.headers.get("Content-Length") if self.command == "HEAD" else None
            server.close()
            if weather.loses():  # the server has done it
                self.close_connection = True
                return
            kept = {name: value for name, value in response.headers.items() if name.lower() not in _OWN}
            self.answer(response.status, kept, answer, length)

        def chunks(self) -> bytes:
            """Reads a body in chunks, with their sizes: it is passed on as it is."""
            raw, size = b"", 1
            while size:
                line = self.rfile.readline()
                size = int(line.partition(b";")[0], 16)
                raw += line + self.rfile.read(size)
                while (end := self.rfile.readline()) != b"\r\n":  # trailers, after the last chunk
                    raw += end
                raw += end
            return raw

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on

        def answer(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        print(server.server_port, flush=True)
        server.serve_forever()


@contextmanager
def unreliable(endpoint: str, *, storms: float = 0.0, resets: float = 0.0) -> Iterator[str]:
    """Yields the address of a proxy.

    Args:
        endpoint: The server.
        storms: How likely it is that the server begins to refuse requests, at each of them.
        resets: How likely it is that the answer to a request is lost.
    """
    command = [sys.executable, "-m", "tests.unreliable", endpoint, str(storms), str(resets)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            yield f"http://127.0.0.1:{int(proxy.stdout.readline())}"
        finally:
            proxy.kill()


def disturbed(proxy: str) -> int:
    """Returns how many requests a proxy has disturbed."""
    with urllib.request.urlopen(proxy + _COUNT) as answer:
        return int(answer.read())


if __name__ == "__main__":
    _serve(sys.argv[1], _Weather(float(sys.argv[2]), float(sys.argv[3])))
