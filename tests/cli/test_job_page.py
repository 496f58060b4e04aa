"""What the server of ``flinkpy job ui`` answers. `tests.e2e.test_job_page` looks at the page with a browser."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.checkpoint.reports.job_overview import job_overview
from dagster_flinkpy.cli.command import main
from dagster_flinkpy.cli.job_page import page_of
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

TOKEN = "the token"
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "srcdoc")
"""What would make text from a job a part of the page."""
ASSETS = ("/page.js", "/graph.js", "/page.css")


def run_job(folder: Path | StorageLocation) -> ObjectStore:
    """Runs a job to its end, and returns the store of its folder."""
    stream = events(environment(2), [(f"k{i % 3}", i, i) for i in range(9)], per_epoch=3)
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    with HarnessAttempt(stream._upstream.program.get_job_graph(), folder) as attempt:
        list(attempt.run_epochs())
    location = StorageLocation(str(folder)) if isinstance(folder, Path) else folder
    return location.child("job").open()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has ended. No test changes it."""
    folder = tmp_path_factory.mktemp("page")
    run_job(folder)
    return folder / "job"


@pytest.fixture
def page(job: Path) -> Any:
    store = LocalObjectStore(job)
    return page_of(store, TOKEN, job_overview(store))


def ask(
    page: Any, path: str, query: str = "token=the%20token", *, method: str = "GET", host: str = "127.0.0.1:8000"
) -> tuple[int, dict[str, str], str]:
    """Sends a request as a web server does, and returns status, headers and text of the answer."""
    told, asked = list[dict[str, Any]](), [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return asked.pop()

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    scope |= {"headers": [(b"host", host.encode())], "http_version": "1.1", "scheme": "http", "root_path": ""}
    asyncio.run(page(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], headers, b"".join(each.get("body", b"") for each in told[1:]).decode()


def test_the_numbers_are_those_of_job_show(page: Any, job: Path) -> None:
    status, headers, text = ask(page, "/job.json")
    shown = CliRunner().invoke(main, ["job", "show", str(job), "--json"]).output
    found, expected = json.loads(text), json.loads(shown)
    assert found | {"read_at_ms": 0} == expected | {"read_at_ms": 0}
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/json", "no-store")
    (keyed,) = (each for each in found["vertices"] if each["uid"] == "counts")
    assert keyed["inputs"] == [{"uid": "events", "partitioner": "hash", "chained": False}]
    assert [each["rows"] for each in found["operators"]["counts"]["subtasks"]] != [0, 0]
    assert [each["checkpoint_id"] for each in found["checkpoints"]["history"]] == [1, 2, 3]
    assert found["checkpoints"]["history"][0]["phases"]["total"] >= 0


def test_it_reads_only_what_has_changed(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.checkpoint.store.fetch_metadata", None)
    assert ask(page, "/job.json")[0] == 200


@pytest.mark.parametrize(
    "query", ["", "token=", "token=the", "token=the%20token%20", "token=%C3%BC", "other=the%20token"]
)
@pytest.mark.parametrize("path", ["/", "/job.json"])
def test_without_the_token_nothing_is_shown(page: Any, path: str, query: str) -> None:
    status, _, text = ask(page, path, query)
    assert (status, text.count("token")) == (403, 1)
    assert "counts" not in text


def test_the_page_loads_nothing_from_elsewhere(page: Any) -> None:
    for path in ("/", *ASSETS):
        status, headers, text = ask(page, path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "the name of a namespace, no address"
        assert not any(
            each in text for each in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        )


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "", "localhost.evil.example"])
def test_another_name_for_this_machine_gets_no_answer(page: Any, host: str) -> None:
    assert ask(page, "/job.json", host=host)[0] == 400


def test_localhost_is_this_machine(page: Any) -> None:
    assert ask(page, "/job.json", host="localhost:8000")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/job.json", "/page.js"])
def test_nothing_can_be_changed(page: Any, path: str, method: str) -> None:
    assert ask(page, path, method=method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/HEAD", "/../HEAD", "/page.js/../../command.py", "//etc/passwd", "/index.html", "/x"]
)
def test_no_path_leads_to_a_file(page: Any, path: str) -> None:
    assert ask(page, path)[0] == 404


def test_a_store_that_fails_is_told_and_asked_again(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise StorageError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "get", fails)
        status, _, text = ask(page, "/job.json")
    assert (status, json.loads(text)) == (503, {"error": "the store is away"})
    assert ask(page, "/job.json")[0] == 200


def test_a_job_on_s3(s3_location: StorageLocation) -> None:
    store = run_job(s3_location)
    found = json.loads(ask(page_of(store, TOKEN, job_overview(store)), "/job.json")[2])
    assert (found["run"]["status"], found["directory"]) == ("FINISHED", f"{s3_location.url}/job")


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["job", "ui", str(tmp_path / "nobody")])
    assert result.exit_code == 1
    assert "no run has stored how the job in" in result.output
    assert "flinkpy job list" in result.output


@pytest.mark.parametrize("missing", ["starlette.applications", "uvicorn"])
def test_without_a_web_server_it_says_what_to_install(missing: str, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = CliRunner().invoke(main, ["job", "ui", str(job)])
    assert result.exit_code == 1
    assert "pip install dagster-webserver" in result.output
