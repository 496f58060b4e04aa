"""A checkpoint takes the place of others of its sink in a table of Delta Lake or Iceberg, in one version."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import DeltaSink, IcebergSink
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.connectors.lake.committer import LakeCommitter
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import CommitRefusedError, CommittableLostError, ConfigurationError
from tests.committing import commit_requests
from tests.connectors.delta import actors as delta_actors
from tests.connectors.iceberg import actors as iceberg_actors
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")
KINDS = ["delta", "iceberg", "branch"]
STEPS = ["put", "put", "put", "others", "other sink", "rewrite", "delete", "expire"]


class Lake:
    """A table, with what the sink and others do to it."""

    def __init__(self, kind: str, folder: Path, row: TypeInformation = ROW, **options: Any) -> None:
        self.row = row
        self.kind, self.folder, self.branch = kind, folder / "t", "b" if kind == "branch" else "main"
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        self.options, self.executions = options, 0
        self.committer(0).abort_lingering([])

    @property
    def sink(self) -> Any:
        if self.kind == "delta":
            return DeltaSink(str(self.folder), **self.options)
        return IcebergSink(
            "db.t", str(self.folder), properties=self.properties, **{"branch": self.branch, **self.options}
        )

    @property
    def iceberg(self) -> Table:
        made = self.committer()
        assert isinstance(made, IcebergCommitter)
        return made._target.catalog.load_table("db.t")

    def committer(self, token: int = 1, uid: str = "sink", job: str = "job", **context: Any) -> LakeCommitter[Any]:
        made = self.sink.create_committer(CommitterInitContext(job, uid, token, self.row, **context))
        assert isinstance(made, LakeCommitter)
        return made

    def stage(self, checkpoint_id: int, *numbers: Any, uid: str = "sink", job: str = "job") -> list[CommitRequest]:
        self.executions += 1
        context = replace(CONTEXT, job_id=job, uid=uid, checkpoint_id=checkpoint_id, execution=f"e{self.executions}")
        writer = self.sink.create_writer(context, self.row)
        if numbers:
            writer.write(self.row.to_arrow([n if isinstance(n, tuple) else (n, f"ü {n % 3}%") for n in numbers]))
        return [CommitRequest(checkpoint_id, 0, json.loads(json.dumps(each))) for each in writer.prepare_commit()]

    def put(self, checkpoint_id: int, *numbers: int, uid: str = "sink", job: str = "job") -> list[CommitRequest]:
        requests = self.stage(checkpoint_id, *numbers, uid=uid, job=job)
        put(self.committer(uid=uid, job=job), requests)
        return requests

    def rows(self) -> list[int]:
        if self.kind == "delta":
            found = DeltaTable(str(self.folder)).to_pyarrow_table()
        else:
            head = self.iceberg.snapshot_by_name(self.branch)
            found = self.iceberg.scan(snapshot_id=None if head is None else head.snapshot_id).to_arrow()
        return sorted(found.column("n").to_pylist())

    def versions(self) -> int:
        if self.kind == "delta":
            return int(DeltaTable(str(self.folder)).version())
        return len(self.iceberg.snapshots())

    def by_others(self, *numbers: int) -> None:
        rows = pa.table({"n": pa.array(numbers, pa.int64()), "s": [f"o {n % 3}" for n in numbers]})
        if self.kind == "delta":
            write_deltalake(str(self.folder), rows, mode="append")
        else:
            self.iceberg.append(rows, branch=self.branch)

    def rewrite(self) -> None:
        """Rewrites all rows into files of its own, as a compaction does."""
        if self.kind == "delta":
            if self.versions():
                delta_actors.rewrite(self.folder)
        elif (head := self.iceberg.snapshot_by_name(self.branch)) is not None:
            rows = self.iceberg.scan(snapshot_id=head.snapshot_id).to_arrow()
            self.iceberg.overwrite(rows, AlwaysTrue(), branch=self.branch)

    def delete(self, number: int) -> None:
        """Deletes a row: its file, or what was in it is written to another one."""
        if self.kind == "delta":
            DeltaTable(str(self.folder)).delete(f"n = {number}")
        else:
            self.iceberg.delete(f"n == {number}", branch=self.branch)

    def expire(self) -> None:
        """Forgets old versions."""
        if self.kind == "delta":
            delta_actors.clean_log(self.folder)
            return
        table = self.iceberg
        heads = {ref.snapshot_id for ref in table.refs().values()}
        if ids := [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in heads]:
            table.maintenance.expire_snapshots().by_ids(ids).commit()


def put(committer: LakeCommitter[Any], requests: list[CommitRequest], replaced: tuple[int, int] | None = None) -> int:
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(committer, fresh, "sink", replaced=replaced)


SWAP = {"delta": (DeltaCommitter, "_swap"), "iceberg": (IcebergCommitter, "_add"), "branch": (IcebergCommitter, "_add")}


@pytest.mark.short
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [(), ("s",)])
def test_old_and_new_rows_change_places_in_one_version(tmp_path: Path, kind: str, by: tuple[str, ...]) -> None:
    lake = Lake(kind, tmp_path, partition_by=by)
    for number in range(1, 5):
        lake.put(number, number * 10, number * 10 + 1)
    lake.put(3, 99, uid="other")
    lake.by_others(77)
    lake.committer().check_replaceable(1, 4)
    before, requests = lake.versions(), lake.stage(6, 5, 6)
    assert put(lake.committer(), requests, (1, 4)) == 0
    assert lake.rows() == [5, 6, 10, 11, 40, 41, 77, 99]
    assert lake.versions() == before + 1
    assert put(lake.committer(token=2), requests, (1, 4)) == len(requests)
    assert (lake.rows(), lake.versions()) == ([5, 6, 10, 11, 40, 41, 77, 99], before + 1)
    assert lake.committer().last_committed() == 6
    lake.committer().replace_epochs(7, [], 0, 7)
    assert lake.rows() == [77, 99]
    lake.committer().replace_epochs(7, [], 0, 7)
    assert lake.versions() == before + 2


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_all_kinds_of_partitions_are_replaced(tmp_path: Path, kind: str) -> None:
    row = Types.ROW_NAMED(
        ["n", "s", "b", "d", "i"], [Types.LONG(), Types.STRING(), Types.BOOLEAN(), Types.SQL_DATE(), Types.INT()]
    )
    records = [(1, "a/b=c %", True, date(1969, 12, 31), -1), (2, "", False, date(2026, 1, 2), 7), (3, *[None] * 4)]
    lake = Lake(kind, tmp_path, row, partition_by=("s", "b", "d", "i"))
    for number in (1, 2):
        put(lake.committer(), lake.stage(number, *records))
    requests = lake.stage(3, *records[:2])
    put(lake.committer(), requests, (0, 2))
    assert lake.rows() == [1, 1, 2, 2, 3]
    counted = lake.sink.count_rows()
    assert counted is not None and counted.rows == 5
    put(lake.committer(), lake.stage(4), (0, 4))


@pytest.mark.parametrize("kind", ["iceberg", "branch"])
def test_files_of_former_partitions_are_replaced(tmp_path: Path, kind: str) -> None:
    lake = Lake(kind, tmp_path)
    lake.put(1, 1)
    iceberg_actors.partition_and_back(lake.iceberg)
    lake.put(2, 2)
    put(lake.committer(), lake.stage(3, 3), (0, 3))
    assert lake.rows() == [3]


@pytest.mark.parametrize(
    ("kind", "act", "match"),
    [
        ("delta", lambda lake: delta_actors.change(lake.folder, appendOnly="true"), "has delta.appendOnly=true"),
        (
            "delta",
            lambda lake: delta_actors.change(lake.folder, setTransactionRetentionDuration="interval 1 days"),
            "may have forgotten which checkpoints it has",
        ),
        ("iceberg", lambda lake: iceberg_actors.delete_by_equality(lake.iceberg, 1), "cannot be found"),
    ],
)
def test_tables_that_keep_rows_or_hide_them_are_refused(tmp_path: Path, kind: str, act: Any, match: str) -> None:
    lake = Lake(kind, tmp_path)
    lake.put(1, 1, 2)
    act(lake)
    with pytest.raises(ConfigurationError, match=match):
        lake.committer().check_replaceable(0, 2)
    with pytest.raises(CommitRefusedError, match=match):
        put(lake.committer(), lake.stage(3, 3), (0, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_others_rewrite_between_look_and_write_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = Lake(kind, tmp_path)
    lake.put(1, 1, 2)
    owner, name = SWAP[kind]
    real, left = getattr(owner, name), [1]

    def swap(self: Any, *args: Any) -> None:
        if left:
            left.pop()
            lake.rewrite()
        real(self, *args)

    monkeypatch.setattr(owner, name, swap)
    with pytest.raises(CommitRefusedError, match="told from others"):
        put(lake.committer(), lake.stage(3, 3), (0, 3))
    assert lake.rows() == [1, 2]


@given(
    kind=st.sampled_from(KINDS),
    steps=st.lists(
        st.sampled_from(["put", "put", "put", "others", "other sink", "rewrite", "delete", "expire"]), max_size=8
    ),
    replaced=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from(["", "before", "after"])), max_size=3
    ),
    by=st.sampled_from([(), ("s",)]),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_replaced_or_nothing_is(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    steps: list[str],
    replaced: list[tuple[int, int, str]],
    by: tuple[str, ...],
) -> None:
    lake = Lake(kind, tmp_path_factory.mktemp("lake"), partition_by=by)
    mine, others, zombies = dict[int, list[int]](), list[int](), list[Any]()
    numbers = iter(range(1, 1000))
    checkpoint_id, rewritten = 0, False

    def act(step: str) -> None:
        nonlocal checkpoint_id, rewritten
        if step == "put":
            checkpoint_id += 1
            rows = [next(numbers) for _ in range(2)]
            with suppress(CommittableLostError):  # just after others have forgotten old versions
                zombies.append((lake.put(checkpoint_id, *rows), None))
                mine[checkpoint_id] = rows
        elif step in ("others", "other sink"):
            number = next(numbers)
            with suppress(CommittableLostError):
                lake.by_others(number) if step == "others" else lake.put(number, number, uid="other")
                others.append(number)
        elif step == "delete" and mine:
            gone = mine[min(mine)].pop() if mine[min(mine)] else 0
            lake.delete(gone)
            rewritten = True
        elif step in ("rewrite", "expire"):
            rewritten = True  # or what was known of files of others is forgotten
            getattr(lake, step)()

    for step in steps:
        act(step)
    for after, count, crash in replaced:
        before = checkpoint_id + 1
        checkpoint_id += 2
        rows = [next(numbers) for _ in range(count)]
        requests = lake.stage(checkpoint_id, *rows)
        there = lake.rows()
        try:
            lake.committer().check_replaceable(after, before)
        except ConfigurationError:
            assert rewritten
            assert lake.rows() == there
            return
        for token in (2, 3):
            committer = lake.committer(token)
            how = dying(SWAP[kind], crash, [1]) if crash and token == 2 else dying(SWAP[kind], "after", [])
            with suppress(Crash), how:
                if requests:
                    try:
                        put(committer, requests, (after, before))
                    except CommittableLostError:
                        assert rewritten and lake.rows() == there
                        return
                else:
                    committer.replace_epochs(checkpoint_id, [], after, before)
        for number in [number for number in mine if after < number < before]:
            del mine[number]
        mine[checkpoint_id] = rows
        zombies.append((requests, (after, before)))
        assert lake.rows() == sorted([*others, *(row for each in mine.values() for row in each)])
        for former, span in zombies:
            with suppress(CommittableLostError):
                put(lake.committer(), former, span)
        assert lake.rows() == sorted([*others, *(row for each in mine.values() for row in each)])
        act("put")
    assert lake.rows() == sorted([*others, *(row for each in mine.values() for row in each)])
