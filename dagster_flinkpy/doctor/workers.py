"""Checks what only tasks can tell: versions, cores, clocks, network and store of Spark's workers."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from dagster_flinkpy.doctor.finding import Finding, Verdict
from dagster_flinkpy.doctor.meeting import TASKS, Meeting
from dagster_flinkpy.doctor.worker import PACKAGES, Errand, version_of
from dagster_flinkpy.errors import ObjectNotFoundError, StoreUnreachableError
from dagster_flinkpy.spark.versions import map_in_arrow
from dagster_flinkpy.storage import StorageLocation

__all__ = ["look_at_workers", "minor"]

_SKEW_SECONDS = 60.0
_FREE_BYTES = 5 << 30
_PORTS = (
    "Tasks that live need it: open the ports between executors, and from executors to the driver. Without them, jobs "
    "run as one Spark job per epoch (`execution.exchange: spark`; `auto` finds that out)."
)


def look_at_workers(session: Any, host: str, storage: StorageLocation | None) -> Iterator[Finding]:
    """Runs a few tasks, and yields what they have found out. Takes less than a minute.

    Args:
        session: A session of Spark.
        host: The address of this machine, as executors should see it.
        storage: A store that they should reach, or None.
    """
    meeting, key = Meeting(), f".probe/doctor-{secrets.token_hex(8)}"
    store = None if storage is None else storage.open()
    if store is not None:
        store.put(key, meeting.token.encode())
    try:
        with meeting.held_at(host) as port:
            errand = Errand(host, port, meeting.token, storage, key)
            tasks = map_in_arrow(session.range(0, TASKS, 1, TASKS), errand.run, "report string", None)
            reports = [json.loads(row["report"]) for row in tasks.collect()]
    finally:
        if store is not None:
            store.delete_many([key])
    yield _workers(reports, meeting.skews)
    yield _network(reports)
    if storage is not None:
        yield _store(reports, storage)


def minor(version: str) -> str:
    """Returns the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _workers(reports: list[dict[str, Any]], skews: list[float]) -> Finding:
    hosts = sorted({report["host"] for report in reports})
    at_once = max((report.get("at_once", 1) for report in reports), default=1)
    pythons = sorted({report["python"] for report in reports})
    packages = {name: sorted({str(report["packages"][name]) for report in reports}) for name in PACKAGES}
    skew = max(map(abs, skews), default=0.0)
    free = min(report["free_bytes"] for report in reports)
    detail = (
        f"{at_once} of {TASKS} tasks ran at the same time, on {', '.join(hosts)} "
        f"({max(report['cores'] for report in reports)} cores, {free / (1 << 30):.0f} GiB free); Python "
        f"{', '.join(pythons)}, " + ", ".join(f"{name} {', '.join(found)}" for name, found in packages.items())
    )
    if skews:
        detail += f"; clocks differ by up to {skew:.1f} s"
    ours = sys.version.split()[0]
    if any(minor(python) != minor(ours) for python in pythons):
        advice = f"Workers need the driver's Python {minor(ours)}, because functions are sent as bytecode."
        return Finding("workers", Verdict.BROKEN, detail, advice)
    if packages["dagster-flinkpy"] != [mine := str(version_of("dagster-flinkpy"))]:
        return Finding(
            "workers", Verdict.BROKEN, detail, f"Install dagster-flinkpy {mine} on the workers, as it is here."
        )
    others = [
        f"{name} {', '.join(found)} (here {version_of(name)})"
        for name, found in packages.items()
        if name != "pyspark" and {each.partition(".")[0] for each in found} != {str(version_of(name)).partition(".")[0]}
    ]
    if others:
        advice = f"Give the workers the packages of the driver; these differ: {'; '.join(others)}."
        return Finding("workers", Verdict.WARNING, detail, advice)
    if skew > _SKEW_SECONDS:
        advice = "The clocks differ. That is safe, but reported ages and lags are wrong by this much: set up NTP."
        return Finding("workers", Verdict.WARNING, detail, advice)
    if free < _FREE_BYTES:
        advice = "Free some space for local copies of state there, or point TMPDIR at a larger disk."
        return Finding("workers", Verdict.WARNING, detail, advice)
    return Finding("workers", Verdict.FINE, detail)


def _network(reports: list[dict[str, Any]]) -> Finding:
    verdict, advice = Verdict.WARNING, _PORTS
    if deaf := {f"{report['host']}: {report['driver']}" for report in reports if report["driver"]}:
        detail = f"workers do not reach the driver: {'; '.join(sorted(deaf))}"
    elif lost := {f"{r['host']} to {to}: {why}" for r in reports for to, why in r["unreachable"].items()}:
        detail = f"workers do not reach each other: {'; '.join(sorted(lost))}"
    elif all(report["at_once"] == 1 for report in reports):
        detail = "workers reach the driver; no two tasks ran at the same time"
        advice = "Tasks that live need two free cores at least. With fewer, jobs run as one Spark job per epoch."
    else:
        verdict, detail, advice = Verdict.FINE, "workers reach the driver and each other, so tasks can live", ""
    return Finding("network", verdict, detail, advice)


def _store(reports: list[dict[str, Any]], storage: StorageLocation) -> Finding:
    what = "store of workers"
    wrong = {f"{report['host']}: {report['store']}" for report in reports if report["store"]}
    if not wrong:
        way = "over their network"
        if storage.local_path is not None:
            way = f"in the directory {storage.path_on_workers or storage.local_path}, which they have mounted"
        took = max(report["store_ms"] for report in reports)
        detail = f"workers read and write {storage.url} {way}; a read, a write and a deletion took {took:.0f} ms"
        return Finding(what, Verdict.FINE, detail)
    detail = f"workers cannot use {storage.url}: {'; '.join(sorted(wrong))}"
    advice = (
        "Give workers a network to the store, and credentials of their own or keys in the resource. A local directory "
        "must be on a file system that all of them share; path_on_workers is for another path there."
    )
    no_way = ObjectNotFoundError if storage.local_path is not None else StoreUnreachableError
    if all(not report["store"] or report["store"].startswith(f"{no_way.__name__}:") for report in reports):
        detail += "; jobs send state and segments through the driver, and it stores what tasks write"
        advice = f"That works for small state, and costs time and memory of the driver in each epoch. {advice}"
        return Finding(what, Verdict.WARNING, detail, advice)
    return Finding(what, Verdict.BROKEN, detail, advice)
