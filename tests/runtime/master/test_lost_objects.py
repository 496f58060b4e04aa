"""Objects of a job are deleted: it continues, or refuses and says why. It never silently repeats rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.counter import read_counter
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.offline import release_leadership, restore_savepoint
from dagster_flinkpy.checkpoint.recovery import recover_head
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import (
    CheckpointError,
    CorruptMetadataError,
    CorruptStateError,
    FencedError,
    HeadLostError,
    RestoreError,
)
from dagster_flinkpy.storage import StorageLocation, lease
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, environment, events

KINDS = {
    "HEAD": ["HEAD"],
    "leader": ["leader"],
    "counter": ["counter", "statistics", "execution"],
    "chk-n/_metadata": ["chk-*"],
    "shared/": ["shared"],
    "savepoints": ["savepoint-*"],
}
SUBSETS = list(chain.from_iterable(combinations(KINDS, n) for n in range(len(KINDS) + 1)))
RECORDS = [(f"k{i % 3}", i * 10, i) for i in range(16)]
PER_EPOCH = 4
BEFORE = 2
"""Number of epochs before anything is lost."""


class CountWithBallast(KeyedProcessFunction):
    """A running count, next to a value so large that the state is in files."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._ballast = runtime_context.get_state(ValueStateDescriptor("ballast", Types.STRING()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        self._ballast.update(random.Random(value.value).randbytes(30_000).hex())
        yield ctx.get_current_key(), self._count.value(), value.value


def program(folder: Path) -> JobGraph:
    env = environment(1)
    counts = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(CountWithBallast(), COUNTED).uid("count")
    counts.sink_to(ParquetSink(str(folder / "table"))).uid("table")
    return env.get_job_graph()


def attempt(folder: Path, **options: Any) -> HarnessAttempt:
    return HarnessAttempt(program(folder), folder / "state", **options)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """Returns what a reader of the table finds."""
    files = sorted((folder / "table").glob("*.parquet"))
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def finish(folder: Path, **options: Any) -> list[str]:
    """Runs the job to its end, and returns its messages."""
    said: list[str] = []
    with attempt(folder, on_progress=said.append, **options) as run:
        while not run.finished:
            run.run_epoch()
    return said


def expected(records: Iterable[tuple[str, int, int]] = RECORDS) -> list[tuple[Any, ...]]:
    counts: dict[str, int] = {}
    found = []
    for key, _, value in records:
        counts[key] = counts.get(key, 0) + 1
        found.append((key, counts[key], value))
    return sorted(found)


def job(folder: Path) -> StorageLocation:
    return StorageLocation(str(folder / "state" / "job"))


def store(folder: Path) -> LocalObjectStore:
    return LocalObjectStore(folder / "state" / "job")


def listing(folder: Path) -> dict[str, bytes]:
    prefix = folder / "state" / "job"
    return {str(p.relative_to(prefix)): p.read_bytes() for p in prefix.rglob("*") if p.is_file()}


def lose(folder: Path, kinds: Iterable[str]) -> None:
    for kind in kinds:
        for pattern in KINDS[kind]:
            for path in (folder / "state" / "job").glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Creates a job that has read half of its input in two runs, with a savepoint next to its checkpoints."""
    folder = tmp_path_factory.mktemp("template")
    for number in range(BEFORE):
        with attempt(folder) as run:
            run.run_epoch()
            if number == 0:
                run.savepoint()
    yield folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "job")
    shutil.rmtree(tmp_path / "job/state/cache")  # it would replace lost state files
    return tmp_path / "job"


def test_each_kind_is_there(folder: Path) -> None:
    before = listing(folder)
    for kind in KINDS:
        lose(folder, [kind])
    assert not [key for key in listing(folder) if ".flinkpy" not in key]
    assert any(key.startswith("shared/") for key in before)


@pytest.mark.parametrize("lost", SUBSETS, ids=lambda lost: "+".join(lost) or "nothing")
def test_a_plain_run_goes_on_or_refuses(folder: Path, lost: tuple[str, ...]) -> None:
    known = lease.read(store(folder))
    counter = read_counter(store(folder))
    assert known is not None and counter is not None
    lose(folder, lost)
    before, left = listing(folder), set(KINDS) - set(lost)
    if "HEAD" in lost and left:
        with pytest.raises(HeadLostError, match="HEAD is missing") as refused:
            finish(folder)
        told = str(refused.value)
        for kind, words in {
            "leader": "leader (token 2, committed up to checkpoint 2)",
            "counter": "counter (up to 2), statistics",
            "chk-n/_metadata": "chk-2",
            "shared/": "state files",
            "savepoints": "savepoint-job-",
        }.items():
            assert (words in told) == (kind in left)
        for advice in ("flinkpy checkpoints recover", "restore_from", "start_empty"):
            assert advice in told
        assert listing(folder) == before
    elif "HEAD" in lost:  # nothing is left, but the sink knows the job
        for _ in range(2):
            with pytest.raises(HeadLostError, match=r"there was nothing in .* 'table' has committed checkpoint 2"):
                finish(folder)
    elif "chk-n/_metadata" in lost:
        with pytest.raises(CorruptMetadataError, match=r"chk-2/_metadata is missing, but HEAD says .* restore_from"):
            finish(folder)
    elif "shared/" in lost:
        with pytest.raises(CorruptStateError, match=r"shared/.* is missing"):
            finish(folder)
    else:
        finish(folder)
        assert rows(folder) == expected()
        now, last = lease.read(store(folder)), read_counter(store(folder))
        assert now is not None and now.token > known.token
        assert last is not None and last[0].last > counter[0].last
        return
    assert rows(folder) == expected(RECORDS[: BEFORE * PER_EPOCH])


@pytest.mark.parametrize(
    "lost",
    [each for each in SUBSETS if "HEAD" in each and len(each) in (1, 2, len(KINDS) - 1, len(KINDS))],  # few, or most
    ids=lambda lost: "+".join(lost),
)
def test_an_explicit_start_says_what_it_leaves_behind_and_fences_what_was(folder: Path, lost: tuple[str, ...]) -> None:
    old = attempt(folder)
    old.__enter__()
    lose(folder, lost)
    left = set(KINDS) - set(lost)
    said: list[str] = []
    with attempt(folder, start_empty=True, on_progress=said.append) as run:
        # Tokens and ids are greater than those of all remaining objects. Others are unknown; there the nonce fences.
        assert run.token > (3 if "leader" in left else 2 if left & {"counter", "chk-n/_metadata"} else 0)
        done = run.run_epoch()
        assert done.checkpoint_id > (2 if left & {"counter", "chk-n/_metadata", "leader"} else 0)
        with pytest.raises((FencedError, CorruptStateError)):
            old.run_epoch()
        latest = CompletedCheckpointStore(store(folder)).latest()
        assert latest is not None and latest.checkpoint_id == done.checkpoint_id
    assert any(line.startswith("starting over and leaving behind: ") for line in said) == bool(left)
    found = read_head(store(folder))
    assert found is not None and not found[0].lost
    finish(folder)  # a run without options continues from there


def test_an_explicit_start_that_completes_nothing_leaves_the_job_lost(folder: Path) -> None:
    lose(folder, ["HEAD"])
    with pytest.raises(RestoreError), attempt(folder, restore_from=str(folder / "nowhere")):
        pass
    with pytest.raises(HeadLostError, match="HEAD was lost"):
        finish(folder)
    with pytest.raises(HeadLostError, match="HEAD was lost"):
        sweep(store(folder))
    with attempt(folder, start_empty=True):
        pass
    with pytest.raises(HeadLostError, match="HEAD was lost"):
        finish(folder)
    recover_head(job(folder), owner="test", now_ms=0)
    finish(folder)
    assert rows(folder) == expected()


def test_a_checkpoint_of_a_job_without_head_is_restored_when_it_is_recovered(folder: Path) -> None:
    lose(folder, ["HEAD"])
    with pytest.raises(RestoreError, match="HEAD was lost: 'flinkpy checkpoints recover'"):
        finish(folder, restore_from="chk-2")
    assert rows(folder) == expected(RECORDS[: BEFORE * PER_EPOCH])


@pytest.mark.parametrize(
    "lost", [("HEAD",), ("HEAD", "leader"), ("HEAD", "counter", "savepoints"), ("HEAD", "leader", "counter")]
)
def test_a_recovered_job_goes_on_where_it_was(folder: Path, lost: tuple[str, ...]) -> None:
    lose(folder, lost)
    result = recover_head(job(folder), owner="test", now_ms=0)
    assert (result.checkpoint_id, result.kept, result.damaged, result.ids_after) == (2, (), (), None)
    finish(folder)
    assert rows(folder) == expected()


@pytest.mark.parametrize("head", [b"", b"{}", b'{"fencing_token": 1e999}', b"[" * 100_000])
def test_a_damaged_head_is_rebuilt(folder: Path, head: bytes) -> None:
    (folder / "state/job/HEAD").write_bytes(head)
    with pytest.raises(CorruptMetadataError, match="flinkpy checkpoints recover"):
        finish(folder)
    recover_head(job(folder), owner="test", now_ms=0)
    finish(folder)
    assert rows(folder) == expected()


def test_what_was_committed_after_the_newest_intact_checkpoint_is_not_repeated(folder: Path) -> None:
    """The latest metadata is damaged. An older checkpoint exists, but its successor's rows are in the table."""
    with attempt(folder, restore_from="chk-2") as run:  # leaves chk-2 unclaimed, so it stays
        run.run_epoch()
    lose(folder, ["HEAD"])
    (folder / "state/job/chk-3/_metadata").write_bytes(b"damaged")
    before = listing(folder)
    with pytest.raises(
        CheckpointError, match=r"newest intact checkpoint .* is 2, but the sinks have committed checkpoint 3"
    ):
        recover_head(job(folder), owner="test", now_ms=0)
    lose(folder, ["leader"])
    with pytest.raises(CheckpointError, match=r"is 2, but a later one may have been committed: .*chk-3"):
        recover_head(job(folder), owner="test", now_ms=0)
    with pytest.raises(CheckpointError, match="checkpoint 3 is not intact"):
        recover_head(job(folder), owner="test", now_ms=0, checkpoint_id=3)
    lose(folder, ["chk-n/_metadata"])
    with pytest.raises(CheckpointError, match="no checkpoint is intact"):
        recover_head(job(folder), owner="test", now_ms=0)
    assert "HEAD" not in listing(folder)
    gone = {key for key in before.keys() - listing(folder).keys() if ".flinkpy" not in key}
    assert gone == {"leader", "chk-2/_metadata", "chk-3/_metadata"}


def test_the_sinks_know_what_was_committed_where_nothing_else_does(folder: Path) -> None:
    with attempt(folder, restore_from="chk-2") as run:
        run.run_epoch()
        asked = run._transactions.committers.last_committed
    assert asked() == 3
    lose(folder, ["HEAD", "leader"])
    shutil.rmtree(folder / "state/job/chk-3")
    with pytest.raises(CheckpointError, match=r"is 2, but there was a checkpoint 3, .* Use --program to ask the sinks"):
        recover_head(job(folder), owner="test", now_ms=0)
    with pytest.raises(CheckpointError, match="is 2, but the sinks have committed checkpoint 3"):
        recover_head(job(folder), owner="test", now_ms=0, last_committed=asked)
    assert recover_head(job(folder), owner="test", now_ms=0, last_committed=lambda: 2).ids_after == 3


def test_a_missing_state_file_makes_a_checkpoint_damaged(folder: Path) -> None:
    lose(folder, ["HEAD", "shared/"])
    with pytest.raises(CheckpointError, match=r"no checkpoint is intact. chk-2: .*shared/.* is missing"):
        recover_head(job(folder), owner="test", now_ms=0)


def test_what_is_not_lost_is_not_rebuilt(folder: Path) -> None:
    before = listing(folder)
    with pytest.raises(CheckpointError, match=r"checkpoint 2 is the latest\. There is nothing to recover"):
        recover_head(job(folder), owner="test", now_ms=0)
    assert listing(folder) == before


def test_a_job_without_head_is_not_swept_or_taken_for_a_savepoint(folder: Path) -> None:
    lose(folder, ["HEAD"])
    before = listing(folder)
    with pytest.raises(HeadLostError):
        sweep(store(folder))
    with pytest.raises(HeadLostError):
        open_checkpoint(job(folder))
    assert listing(folder) == before


def test_leadership_is_taken_away_without_head_too_and_nothing_else_changes(folder: Path) -> None:
    old = attempt(folder)
    old.__enter__()
    lose(folder, ["HEAD"])
    assert release_leadership(job(folder), owner="test", now_ms=0) is not None
    with pytest.raises(FencedError):
        old.run_epoch()
    with pytest.raises(HeadLostError):
        finish(folder)


def test_a_savepoint_restored_without_the_program_starts_over(folder: Path) -> None:
    lose(folder, ["HEAD", "chk-n/_metadata", "shared/", "leader", "counter"])
    [savepoint] = (folder / "state/job").glob("savepoint-*")
    restore_savepoint(job(folder), StorageLocation(str(savepoint)), owner="test", now_ms=0)
    finish(folder)
    once = set(expected())
    assert (
        set(rows(folder)) == once and len(rows(folder)) == len(once) + PER_EPOCH
    )  # the epoch after the savepoint is repeated


def test_the_first_attempt_may_crash_at_any_write(tmp_path: Path) -> None:
    """HEAD is written first, so what a crash leaves is never mistaken for a loss."""

    class Crashes(LocalObjectStore):
        writes = 0

        def put(self, key: str, *args: Any, **kwargs: Any) -> str:
            if self.writes == 0:
                raise KeyboardInterrupt
            self.writes -= 1
            return super().put(key, *args, **kwargs)

    for writes in range(4):
        objects = Crashes(tmp_path / f"{writes}")
        objects.writes = writes
        try:
            CompletedCheckpointStore(objects).begin_attempt("run-1", 0)
        except KeyboardInterrupt:
            assert writes < 3
        again = CompletedCheckpointStore(LocalObjectStore(tmp_path / f"{writes}")).begin_attempt("run-2", 0)
        assert (again.latest, again.left_behind) == (None, "")
