"""The Iceberg sink on a REST catalog: pyiceberg's client, and a small server around a SQL catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest

from dagster_flinkpy.connectors import IcebergSink, IcebergSource
from tests.connectors.iceberg.test_sink import commit, committer, opened, rows, stage

ERRORS = {NoSuchTableError: 404, CommitFailedException: 409, TableAlreadyExistsError: 409}


class Server:
    """Answers the requests of a client, and loses some of the answers."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog, self.commits, self.lost = catalog, 0, set[int]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                try:
                    self.reply(200, server.answer(self.command, self.path.partition("?")[0], body))
                except TimeoutError:
                    self.reply(504, '{"error": {"message": "lost", "type": "x", "code": 504}}')
                except tuple(ERRORS) as error:
                    code, name = ERRORS[type(error)], type(error).__name__
                    self.reply(code, f'{{"error": {{"message": "refused", "type": "{name}", "code": {code}}}}}')

            do_POST = do_HEAD = do_GET

            def reply(self, code: int, text: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def answer(self, method: str, path: str, body: str) -> str:
        if path == "/v1/config":
            return '{"defaults": {}, "overrides": {}}'
        if path == "/v1/namespaces":
            self.catalog.create_namespace_if_not_exists("db")
            return '{"namespace": ["db"], "properties": {}}'
        if path.endswith("/tables"):
            wanted = CreateTableRequest.model_validate_json(body)
            assert wanted.stage_create
            staged = self.catalog._create_staged_table(
                ("db", wanted.name),
                wanted.table_schema,
                wanted.location,
                wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            )
            return self.described(staged)
        name = ("db", path.rpartition("/")[2])
        if method != "POST":
            return self.described(self.catalog.load_table(name))
        request = CommitTableRequest.model_validate_json(body)
        target: Any = SimpleNamespace(name=lambda: name)
        done = self.catalog.commit_table(target, request.requirements, request.updates)
        self.commits += 1
        if self.commits in self.lost:
            raise TimeoutError
        return done.model_dump_json(by_alias=True)

    def described(self, table: Any) -> str:
        found = TableResponse(metadata=table.metadata, **{"metadata-location": table.metadata_location})
        return found.model_dump_json(by_alias=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(SqlCatalog("server", uri=f"sqlite:///{tmp_path}/catalog.db"))
    threading.Thread(target=made.http.serve_forever, daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_rest_catalog(server: Server, tmp_path: Path) -> None:
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{server.http.server_port}"}
    sink = IcebergSink("db.t", str(tmp_path / "t"), properties=properties, partition_by=["s"])
    first, second = stage(sink, 1), stage(sink, 2, checkpoint_id=2)
    committer(sink).abort_lingering([first, second])
    assert (rows(sink), server.commits) == ([], 1)
    server.lost = {2}
    commit(sink, first)  # the answer is lost: it is looked up, and not repeated
    assert (rows(sink), server.commits) == ([1], 2)
    other = opened(sink)
    commit(sink, second)
    with pytest.raises(CommitFailedException):  # an attempt that looked before
        other.catalog.commit_table(other, *_append(other))
    assert commit(sink, first, second, token=2) == 2
    assert (rows(sink), server.commits) == ([1, 2], 3)
    source = IcebergSource("db.t", str(tmp_path / "t"), properties=properties)
    [splits] = source.create_enumerator(None).plan_epoch(1)
    assert sorted(n for s in splits for c, _ in source.read(s) for n in c.field("n").to_pylist()) == [1, 2]


def test_a_branch_in_a_rest_catalog(server: Server, tmp_path: Path) -> None:
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{server.http.server_port}"}
    main, sink = (IcebergSink("db.t", str(tmp_path / "t"), properties=properties, branch=b) for b in ("main", "audit"))
    commit(main, stage(main, 1, execution="m"))
    committer(sink).abort_lingering([])
    request, server.lost = stage(sink, 2, checkpoint_id=2), {server.commits + 1}
    commit(sink, request)
    assert (rows(sink), commit(sink, request)) == ([1], 1)
    head = opened(sink).snapshot_by_name("audit")
    assert head is not None
    found = opened(sink).scan(snapshot_id=head.snapshot_id).to_arrow().column("n").to_pylist()
    assert sorted(found) == [1, 2]


def _append(table: Any) -> tuple[Any, Any]:
    transaction = table.transaction()
    transaction.append(pa.table({"n": [9], "s": ["x"]}))
    return transaction._requirements, transaction._updates
