"""What `flinkpy doctor` finds out by tasks on workers. Here they are threads."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.doctor import Verdict, meeting, worker
from dagster_flinkpy.doctor.meeting import TASKS, Meeting
from dagster_flinkpy.doctor.worker import Errand, version_of
from dagster_flinkpy.doctor.workers import _network, _store, _workers
from dagster_flinkpy.errors import AccessDeniedError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore

HERE = "127.0.0.1"


def report(errand: Errand) -> dict[str, Any]:
    (batch,) = errand.run(iter([None]))
    return json.loads(batch.column(0)[0].as_py())


def met(tasks: int, storage: StorageLocation | None = None) -> list[dict[str, Any]]:
    held = Meeting()
    with held.held_at(HERE) as port, ThreadPoolExecutor(tasks) as pool:
        return list(pool.map(report, [Errand(HERE, port, held.token, storage, "key")] * tasks))


def test_tasks_reach_the_driver_and_each_other() -> None:
    reports = met(TASKS)
    assert [each["at_once"] for each in reports] == [TASKS] * TASKS
    assert _network(reports).verdict is Verdict.FINE
    assert _workers(reports, [0.0]).verdict is Verdict.FINE


def test_too_few_cores_for_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_WAITS_SECONDS", 0.2)
    assert [each["at_once"] for each in met(2)] == [2, 2]
    alone = met(1)
    assert alone[0]["at_once"] == 1
    assert "no two tasks ran at the same time" in _network(alone).detail


def test_a_driver_that_is_not_reached() -> None:
    with socket.socket() as unused:
        unused.bind((HERE, 0))
        finding = _network([report(Errand(HERE, unused.getsockname()[1], "token", None, "key"))])
    assert finding.verdict is Verdict.WARNING
    assert "workers do not reach the driver" in finding.detail
    assert "open the ports" in finding.advice


def test_workers_that_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_WAITS_SECONDS", 0.2)
    real = socket.create_connection
    own: list[int] = []

    def firewall(address: tuple[str, int], timeout: float) -> socket.socket:
        if not own:
            own.append(address[1])  # the driver, which is called first
        if address[1] != own[0]:
            raise TimeoutError("timed out")
        return real(address, timeout)

    monkeypatch.setattr(worker.socket, "create_connection", firewall)
    finding = _network(met(2))
    assert finding.verdict is Verdict.WARNING
    assert "TimeoutError: timed out" in finding.detail


def test_nobody_is_heard_without_the_token() -> None:
    held = Meeting()
    with held.held_at(HERE) as port:
        for said in (b"GET / HTTP/1.1\n", b'{"token": "wrong"}\n', b"[]\n"):
            with socket.create_connection((HERE, port), 5) as line, line.makefile("rb") as answer:
                line.sendall(said)
                assert answer.read() == b""
    assert held.skews == []


def test_a_store_that_workers_do_not_share(tmp_path: Path) -> None:
    storage = StorageLocation(str(tmp_path))
    finding = _store([report(Errand(HERE, 1, "token", storage, "key"))], storage)
    assert finding.verdict is Verdict.WARNING
    assert "ObjectNotFoundError" in finding.detail and "through the driver" in finding.detail
    assert "file system that all of them share" in finding.advice


def test_a_store_to_which_no_network_leads() -> None:
    storage = StorageLocation("s3://bucket", "http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    finding = _store([report(Errand(HERE, 1, "token", storage, "key"))], storage)
    assert finding.verdict is Verdict.WARNING
    assert "StoreUnreachableError" in finding.detail and "through the driver" in finding.detail


def test_a_store_that_workers_may_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = StorageLocation(str(tmp_path))
    storage.open().put("key", b"token")
    errand = Errand(HERE, 1, "token", storage, "key")
    finding = _store([report(errand)], storage)
    assert finding.verdict is Verdict.FINE
    assert f"in the directory {tmp_path}, which they have mounted" in finding.detail
    assert [found.key for found in storage.open().list()] == ["key"]

    def put(*_: Any, **__: Any) -> str:
        raise AccessDeniedError("allowed to use s3:PutObject")

    monkeypatch.setattr(LocalObjectStore, "put", put)
    finding = _store([report(errand)], storage)
    assert finding.verdict is Verdict.BROKEN
    assert "s3:PutObject" in finding.detail


def test_another_object_in_the_store(tmp_path: Path) -> None:
    storage = StorageLocation(str(tmp_path))
    storage.open().put("key", b"of somebody else")
    assert "another object" in report(Errand(HERE, 1, "token", storage, "key"))["store"]


@pytest.mark.parametrize(
    ("changed", "verdict", "advice"),
    [
        ({"python": "3.9.1"}, Verdict.BROKEN, "driver's Python"),
        ({"packages": {"dagster-flinkpy": "0.0.9"}}, Verdict.BROKEN, "Install dagster-flinkpy"),
        ({"packages": {"dagster-flinkpy": None}}, Verdict.BROKEN, "Install dagster-flinkpy"),
        ({"packages": {"pyarrow": "1.0"}}, Verdict.WARNING, "pyarrow 1.0, "),
        ({"free_bytes": 1 << 20}, Verdict.WARNING, "TMPDIR"),
    ],
)
def test_workers_that_differ(changed: dict[str, Any], verdict: Verdict, advice: str) -> None:
    found = report(Errand(HERE, 1, "token", None, "key"))
    changed = {**changed, "packages": found["packages"] | changed.get("packages", {})}
    finding = _workers([found, found | changed], [])
    assert finding.verdict is verdict
    assert advice in finding.advice


def test_clocks_that_differ() -> None:
    finding = _workers([report(Errand(HERE, 1, "token", None, "key"))], [0.1, -300.0])
    assert finding.verdict is Verdict.WARNING
    assert "clocks differ by up to 300.0 s" in finding.detail
    assert "NTP" in finding.advice


def test_the_version_of_what_is_not_installed_is_none() -> None:
    assert version_of("no-such-package") is None
