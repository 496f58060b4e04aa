"""The programs of the stateful suite give what simple loops over the same input give, also across rescales."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.stateful import peers, rules
from benchmarks.stateful.checker import OutputDiffersError, check
from benchmarks.stateful.input import FEATURES, Input, tables
from benchmarks.stateful.processes import VARIABLE
from benchmarks.stateful.programs import PROGRAMS, program
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local

EVENTS, KEYS, STEP = 12_000, 300, 10

Rows = Iterable[dict[str, Any]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return Input(tmp_path_factory.mktemp("input") / "tables", EVENTS, KEYS, per_slice=EVENTS // 3, step=STEP)


def deduplicate(events: Rows) -> Iterator[tuple[Any, ...]]:
    seen = {}
    for event in events:
        seen.setdefault(event["id"], tuple(event.values()))
    yield from seen.values()


def top_n(events: Rows) -> Iterator[tuple[Any, ...]]:
    amounts = defaultdict(list)
    for event in events:
        before = amounts[event["user"]]
        rank = 1 + sum(other >= event["amount"] for other in before)
        before.append(event["amount"])
        if rank <= rules.TOP:
            yield event["user"], rank, event["amount"], event["time"]


def sessions(events: Rows) -> Iterator[tuple[Any, ...]]:
    by_user = defaultdict(list)
    for event in events:
        by_user[event["user"]].append(event)
    for user, own in by_user.items():
        groups = [[own[0]]]
        for before, event in pairwise(own):
            if event["time"] - before["time"] > rules.GAP:  # windows that touch become one
                groups.append([])
            groups[-1].append(event)
        for group in groups:
            end = group[-1]["time"] + rules.GAP
            yield user, group[0]["time"], end, len(group), sum(event["amount"] for event in group)


def fraud(events: Rows) -> Iterator[tuple[Any, ...]]:
    previous: dict[int, dict[str, int]] = {}
    for event in events:
        before = previous.get(event["user"])
        previous[event["user"]] = event
        if not before or before["amount"] >= rules.SMALL or event["amount"] <= rules.LARGE:
            continue
        if event["time"] - before["time"] <= rules.SUSPICIOUS:
            yield event["user"], before["time"], event["time"], event["amount"]


def interval_join(events: Rows, payments: Rows) -> Iterator[tuple[Any, ...]]:
    by_id = defaultdict(list)
    for payment in payments:
        by_id[payment["id"]].append(payment["time"])
    for event in events:
        for paid in by_id[event["id"]]:
            if 0 <= paid - event["time"] <= rules.WITHIN:
                yield event["id"], event["user"], event["amount"], event["time"], paid


def enrichment(events: Rows, products: Rows) -> Iterator[tuple[Any, ...]]:
    by_product = {each["product"]: each for each in products}
    for event in events:
        product = by_product[event["product"]]
        yield event["id"], event["user"], event["time"], product["category"], event["amount"] * product["rate"]


def features(measurements: Rows) -> Iterator[tuple[Any, ...]]:
    means: dict[int, list[float]] = {}
    for row in measurements:
        values = [row[f"f{i}"] for i in range(FEATURES)]
        if row["user"] in means:
            values = [m + rules.ALPHA * (v - m) for m, v in zip(means[row["user"]], values, strict=True)]
        means[row["user"]] = values
        yield row["user"], row["time"], *values


EXPECTED = {each.__name__: each for each in (deduplicate, top_n, sessions, fraud, interval_join, enrichment, features)}


def expected(name: str) -> Counter[tuple[Any, ...]]:
    all_tables = tables(EVENTS, KEYS, STEP)
    return Counter(EXPECTED[name](*(all_tables[table].to_pylist() for table in PROGRAMS[name].tables)))


def written(folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in pq.read_table(folder).to_pylist())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, source: Input, tmp_path: Path) -> None:
    env = program(name, source, str(tmp_path / "output"), parallelism=2)
    run_local(env)
    wanted = expected(name)
    assert sum(wanted.values()) > 10
    assert written(tmp_path / "output") == wanted


class Handle:
    """Spark's handle of the state and timers of a processor, with one value per key, in memory."""

    def __init__(self) -> None:
        self.key: Any = None
        self.values: dict[Any, Any] = {}
        self.timers: set[tuple[int, Any]] = set()

    def getValueState(self, name: str, schema: str, ttl: int | None) -> Handle:
        return self

    def get(self) -> Any:
        return self.values.get(self.key)

    def update(self, value: Any) -> None:
        self.values[self.key] = value

    def clear(self) -> None:
        self.values.pop(self.key, None)

    def registerTimer(self, time: int) -> None:
        self.timers.add((time, self.key))

    def deleteTimer(self, time: int) -> None:
        self.timers.remove((time, self.key))


@pytest.mark.parametrize("name", ["deduplicate", "top_n", "fraud", "features"])
def test_processors_of_spark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In micro-batches; the rows of a key are in any order, and timers fire after a micro-batch."""
    from pyspark.sql import Row

    monkeypatch.syspath_prepend(str(Path(peers.__file__).parent))
    monkeypatch.setenv(VARIABLE, "test")
    table, key, processor, _, _ = import_module("spark_programs").PROGRAMS[name]
    handle, written, function = Handle(), Counter[tuple[Any, ...]](), processor()
    function.init(handle)
    rows = [Row(**row) for row in tables(EVENTS, KEYS, STEP)[table].to_pylist()]
    for start in range(0, len(rows), 1_000):
        batch = rows[start : start + 1_000]
        watermark = batch[-1].time
        by_key = defaultdict(list)
        for row in reversed(batch):
            by_key[row[key]].append(row)
        for handle.key, own in by_key.items():
            written.update(map(tuple, function.handleInputRows((handle.key,), iter(own), None)))
        for timer in sorted(timer for timer in handle.timers if timer[0] <= watermark):
            handle.timers.remove(timer)
            handle.key = timer[1]
            assert not list(function.handleExpiredTimer((handle.key,), None, None))
    assert name != "fraud" or handle.timers
    assert written == expected(name)


def test_checker_names_what_differs() -> None:
    with pytest.raises(OutputDiffersError, match=r"PyFlink has 1 rows too many \(\(2,\)\) and lacks 2 \(\(1,\)\)"):
        check("PyFlink", Counter({(1,): 1, (2,): 1}), Counter({(1,): 3}))
    check("PyFlink", Counter({(1,): 2}), Counter([(1,), (1,)]))


@pytest.mark.parametrize("name", ["top_n", "sessions", "fraud", "interval_join"])
def test_checkpoints_and_a_rescale(name: str, source: Input, tmp_path: Path) -> None:
    config = JobConfig(name, StorageLocation(str(tmp_path / "store")), in_process=True)
    for parallelism, limit in ((2, 1), (3, 1), (1, None)):
        env = program(name, source, str(tmp_path / "output"), parallelism)
        with JobAttempt(env.get_job_graph(), config, owner="test", parallelism=parallelism) as attempt:
            list(attempt.run_epochs(limit))
    assert written(tmp_path / "output") == expected(name)
