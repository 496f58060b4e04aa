"""What OpenLineage is told of runs, by a server in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSource, PostgresSink, PostgresSource
from dagster_flinkpy.datastream.connectors.kafka import KafkaSource
from dagster_flinkpy.orchestration.runs.open_lineage import dataset_name
from tests.orchestration.runs.test_epoch_events import Words, words

__all__ = ["words"]


class Marquez(ThreadingHTTPServer):
    """Takes events."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []
        self.status = 201


class _Handler(BaseHTTPRequestHandler):
    server: Marquez

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.events.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def marquez(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marquez]:
    with Marquez() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        transport = {"TYPE": "http", "URL": f"http://127.0.0.1:{server.server_port}", "COMPRESSION": ""}
        for name, value in transport.items():
            if value:
                monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
        yield server
        server.shutdown()


def test_a_run_says_what_it_reads_and_writes(words: Words, marquez: Marquez) -> None:
    result = words.run("abc", epochs=2)
    assert result.success
    started, completed = marquez.events
    assert [started["eventType"], completed["eventType"]] == ["START", "COMPLETE"]
    assert started["run"]["runId"] == completed["run"]["runId"] == result.run_id
    assert completed["job"]["name"] == "words" and completed["job"]["namespace"] == "dagster"
    (output,) = completed["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(words.path / "table"))
    assert [field["name"] for field in output["facets"]["schema"]["fields"]] == ["f0", "f1"]
    assert completed["inputs"] == [], "a collection is nowhere"


def test_a_run_that_fails_says_why(words: Words, marquez: Marquez) -> None:
    assert not words.run("ab!", epochs=3).success
    assert [event["eventType"] for event in marquez.events] == ["START", "FAIL"]
    assert "!" in marquez.events[-1]["run"]["facets"]["errorMessage"]["message"]


def test_a_run_goes_on_if_nobody_takes_its_events(words: Words, marquez: Marquez) -> None:
    marquez.status = 403
    assert words.run("ab", epochs=1).success
    assert words.rows() == [1]


def test_without_a_configuration_nothing_is_sent(words: Words, instance: DagsterInstance) -> None:
    assert words.run("ab", epochs=1).success


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://bucket/shop/orders", ("s3://bucket", "shop/orders")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("file:///data/orders", ("file", "/data/orders")),
        ("kafka://broker:9092/orders", ("kafka://broker:9092", "orders")),
        ("postgresql://db/shop/public.orders", ("postgres://db:5432", "shop.public.orders")),
        ("postgresql://db:5433/shop/orders", ("postgres://db:5433", "shop.orders")),
        ("postgresql://a:5433,b:5434/shop/public.t", ("postgres://a:5433,b:5434", "shop.public.t")),
    ],
)
def test_datasets_have_the_names_of_open_lineage(uri: str, name: tuple[str, str]) -> None:
    assert dataset_name(uri) == name


def test_sources_say_where_they_read(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(["a"], [Types.LONG()])
    conninfo = "postgresql://me:secret@db/shop"
    assert ParquetSource("s3://b/orders", row_type=row).uris() == ["s3://b/orders"]
    assert ParquetSource(str(tmp_path), row_type=row).uris() == [tmp_path.as_uri()]
    kafka = KafkaSource.builder().set_bootstrap_servers("one:9092,two:9092").set_topics("a", "b")
    assert kafka.set_value_only_deserializer(_text()).build().uris() == ["kafka://one:9092/a", "kafka://one:9092/b"]
    source = PostgresSource(conninfo, "public.orders", "a", row_type=row)
    assert source.uris() == [PostgresSink(conninfo, "public.orders", str(tmp_path)).uri()]
    assert "secret" not in source.uris()[0]


def _text() -> Any:
    from dagster_flinkpy.common.serialization import SimpleStringSchema

    return SimpleStringSchema()
