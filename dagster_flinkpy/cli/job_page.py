"""``flinkpy job ui``: a page for one job, which this process serves on this machine only."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
from contextlib import closing, suppress
from importlib import resources
from typing import TYPE_CHECKING

import click

from dagster_flinkpy.checkpoint.reports.job_overview import JobOverview, job_overview
from dagster_flinkpy.cli.common import endpoint_url_option, location_of
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError
from dagster_flinkpy.storage import ObjectStore

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["job_ui", "page_of"]

_HOST = "127.0.0.1"
_FILES = {"page.js": "text/javascript", "graph.js": "text/javascript", "page.css": "text/css"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
}
_NO_TOKEN = "This address lacks the token of the page. 'flinkpy job ui' has printed the whole address.\n"


@click.command("ui")
@click.argument("directory", metavar="DIR")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. Default: a free one.")
@endpoint_url_option
def job_ui(directory: str, port: int, endpoint_url: str | None) -> None:
    """Serve a page that shows the job in DIR while it runs: its graph, watermarks, checkpoints and failures.

    The page only reads what "flinkpy job show --json" prints. Only this machine can reach it, and only with the token
    in its address. Ctrl+C ends it.
    """
    store = location_of(directory, endpoint_url).open()
    token = secrets.token_urlsafe(32)
    page = page_of(store, token, job_overview(store))
    import uvicorn

    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen()  # before anybody knows the address
        click.echo(f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}")
        # Its log of requests would have the token.
        config = uvicorn.Config(page, log_level="warning", access_log=False, server_header=False, lifespan="off")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def page_of(store: ObjectStore, token: str, known: JobOverview) -> Starlette:
    """Returns the page of a job as an ASGI application.

    Args:
        store: The object store, rooted at the job's prefix.
        token: What a request for the page, or for its numbers, must have as its parameter ``token``.
        known: What is known about the job.

    Raises:
        ConfigurationError: Starlette or uvicorn are not installed.
    """
    try:
        import uvicorn  # noqa: F401
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigurationError(
            "the page of a job needs Starlette and uvicorn, which come with Dagster's web server: "
            "pip install dagster-webserver"
        ) from error
    folder = resources.files(__package__) / "page"
    files = {name: (folder / name).read_bytes() for name in ("index.html", *_FILES)}
    reading = threading.Lock()

    def answer(content: bytes | str, media_type: str, status: int = 200) -> Response:
        return Response(content, status, _HEADERS, media_type)

    def allowed(request: Request) -> bool:
        return hmac.compare_digest(request.query_params.get("token", "").encode(), token.encode())

    def index(request: Request) -> Response:
        return answer(files["index.html"], "text/html") if allowed(request) else answer(_NO_TOKEN, "text/plain", 403)

    def file(request: Request) -> Response:
        name = request.url.path.removeprefix("/")  # one of the routes, which has no secrets
        return answer(files[name], _FILES[name])

    def numbers(request: Request) -> Response:
        nonlocal known
        if not allowed(request):
            return answer(_NO_TOKEN, "text/plain", 403)
        try:
            with reading:  # several windows are no reason to read it several times at once
                known = job_overview(store, known)
        except (FlinkPyError, OSError) as error:
            return answer(json.dumps({"error": str(error) or type(error).__name__}), "application/json", 503)
        return answer(json.dumps(known.to_json()), "application/json")

    routes = [Route("/", index), Route("/job.json", numbers), *(Route(f"/{name}", file) for name in _FILES)]
    # Another name for this address is that of a page which had it before: DNS rebinding.
    ours = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"], www_redirect=False)
    return Starlette(routes=routes, middleware=[ours])
