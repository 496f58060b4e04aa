"""Branches of an Iceberg table: what a sink adds to one is in no other one, and others may remove it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.offline import restore_savepoint, stop_with_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import IcebergSink, IcebergSource, ParquetSink
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.connectors.iceberg.committer import IcebergCommitter
from dagster_flinkpy.datastream.connectors.base import CommitRequest
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, InputChangedError
from dagster_flinkpy.storage import StorageLocation
from tests.connectors.iceberg.actors import again, append
from tests.connectors.iceberg.test_changes import OPTIONS, graph_of, put
from tests.connectors.iceberg.test_sink import commit, committer, opened, sink_in, stage
from tests.connectors.lake.test_table_sources import take
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT

BRANCH = "a/b.c"


def rows_in(sink: IcebergSink, branch: str, column: str = "n") -> list[int]:
    head = opened(sink).snapshot_by_name(branch)
    assert head is not None
    return sorted(opened(sink).scan(snapshot_id=head.snapshot_id).to_arrow().column(column).to_pylist())


def current(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def remove(table: Table) -> None:
    table.manage_snapshots().remove_branch(BRANCH).commit()


def move(table: Table, snapshot_id: int) -> None:
    """Makes the branch anew at a snapshot."""
    again(table).manage_snapshots().create_branch(snapshot_id, BRANCH).commit()


def of(mode: str) -> dict[str, Any]:
    return {"partition": "a"} if mode == "replace" else {}


def branch_with_rows(folder: Path, mode: str = "append") -> tuple[IcebergSink, Any, CommitRequest]:
    """Returns a sink into a branch, a committer that has added 2 to the 1 of main there, and the staged 3."""
    main, sink = sink_in(folder, **OPTIONS[mode]), sink_in(folder, branch=BRANCH, **OPTIONS[mode])
    commit(main, stage(main, 1, **of(mode), execution="m"))
    running = committer(sink)
    running.abort_lingering([])
    put(running, stage(sink, 2, **of(mode)))
    return sink, running, stage(sink, 3, checkpoint_id=2, **of(mode))


@pytest.mark.parametrize("mode", OPTIONS)
def test_what_is_added_to_a_branch_is_not_in_main(tmp_path: Path, mode: str) -> None:
    main = sink_in(tmp_path, **OPTIONS[mode])
    sink, running, request = branch_with_rows(tmp_path, mode)
    before = current(opened(sink))
    put(running, request)
    assert commit(sink, request, token=2) == 1
    assert (rows_in(sink, "main"), current(opened(sink))) == ([1], before)
    assert rows_in(sink, BRANCH) == ([3] if mode == "replace" else [1, 2, 3])
    commit(main, stage(main, 4, checkpoint_id=5, **of(mode)))
    assert rows_in(sink, "main") == ([4] if mode == "replace" else [1, 4])
    assert rows_in(sink, BRANCH) == ([3] if mode == "replace" else [1, 2, 3])
    assert (committer(sink).last_committed(), committer(main).last_committed()) == (2, 5)
    if mode != "append":
        again = stage(sink, *((3,) if mode == "merge" else ()), checkpoint_id=3, **of(mode))
        put(running, again)
        assert rows_in(sink, BRANCH) == ([1, 2, 3] if mode == "merge" else [])
    assert len(rows_in(sink, "main")) == (1 if mode == "replace" else 2)


def test_the_rows_of_a_branch_are_counted_and_it_has_a_uri_of_its_own(tmp_path: Path) -> None:
    sink, _, _ = branch_with_rows(tmp_path)
    main = sink_in(tmp_path)
    counted = [each.count_rows() for each in (main, sink)]
    assert [None if each is None else each.rows for each in counted] == [1, 2]
    assert sink.uri() == f"{main.uri()}#a%2Fb.c"
    assert sink.folders() == main.folders()


def test_a_branch_of_a_table_that_does_not_exist_yet(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, branch=BRANCH)
    commit(sink, stage(sink, 1))
    assert (rows_in(sink, "main"), rows_in(sink, BRANCH)) == ([], [1])


@pytest.mark.parametrize("others", ["row", "branch"])
def test_two_first_runs_into_a_branch_of_a_new_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """Between our look and our write, somebody adds a row to main, or another run creates the branch."""
    sink, steps = sink_in(tmp_path, branch=BRANCH), list[str]()
    main = sink_in(tmp_path)
    committer(main).abort_lingering([])
    real = SqlCatalog.commit_table

    def commit_table(self: SqlCatalog, *args: Any) -> Any:
        if not steps:
            steps.append(others)
            commit(*((main, stage(main, 5)) if others == "row" else (sink, stage(sink, 6))))
        return real(self, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    commit(sink, stage(sink, 1, checkpoint_id=2))
    assert rows_in(sink, "main") == ([5] if others == "row" else [])
    assert rows_in(sink, BRANCH) == ([1, 5] if others == "row" else [1, 6])


def test_a_tag_is_no_branch(tmp_path: Path) -> None:
    sink, _, _ = branch_with_rows(tmp_path)
    opened(sink).manage_snapshots().create_tag(current(opened(sink)), "tagged").commit()
    with pytest.raises(ConfigurationError, match="'tagged' is a tag of Iceberg table"):
        committer(sink_in(tmp_path, branch="tagged")).abort_lingering([])


def test_the_retention_of_a_branch_stays(tmp_path: Path) -> None:
    sink, running, request = branch_with_rows(tmp_path)
    head = opened(sink).refs()[BRANCH].snapshot_id
    manage = opened(sink).manage_snapshots()
    manage.create_branch(head, BRANCH, max_ref_age_ms=10**9, min_snapshots_to_keep=7).commit()
    put(running, request)
    ref = opened(sink).refs()[BRANCH]
    assert ref.snapshot_id != head
    assert (ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep) == (10**9, None, 7)


# --- others -----------------------------------------------------------------------------------------------------------


def replace_by_main(table: Table) -> None:
    move(table, current(table))


def write_and_remove(table: Table) -> None:
    table.append(table.scan().to_arrow())
    remove(again(table))


LOSSES: dict[str, tuple[Callable[[Table], None], str]] = {
    "removed": (remove, "does not exist any more: it was removed, or has expired. Create it again at its last"),
    "removed while main goes on": (write_and_remove, "does not exist any more"),
    "made anew": (
        replace_by_main,
        "does not have the rows of checkpoint 1 any more: .*rolled back or made anew",
    ),
}


@pytest.mark.short
@pytest.mark.parametrize("amid", [False, True], ids=["before a commit", "amid a commit"])
@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("what", LOSSES)
def test_a_branch_that_somebody_removes_is_refused_until_it_is_put_back(
    tmp_path: Path, what: str, mode: str, amid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, running, request = branch_with_rows(tmp_path, mode)
    head = opened(sink).refs()[BRANCH].snapshot_id
    act, said = LOSSES[what]
    if not amid:
        running = committer(sink, token=2)  # an attempt that has committed nothing yet
        running.abort_lingering([request])
        act(opened(sink))
    else:
        real, left = IcebergCommitter._swap, [act]

        def swap(self: IcebergCommitter, *args: Any) -> None:
            if left:
                left.pop()(opened(sink))
            real(self, *args)

        monkeypatch.setattr(IcebergCommitter, "_swap", swap)
    with pytest.raises(CommitRefusedError, match=rf"branch 'a/b.c' of Iceberg .*{said}.* stay staged") as refused:
        put(running, request)
    if what != "made anew":
        assert f"{head} or one after it" in str(refused.value)
    move(opened(sink), head)
    assert put(running, request) == 0
    assert rows_in(sink, BRANCH) == ([3] if mode == "replace" else [1, 2, 3])


def test_a_branch_that_was_removed_keeps_a_partition_without_rows_from_being_replaced(tmp_path: Path) -> None:
    sink, running, _ = branch_with_rows(tmp_path, "replace")
    remove(opened(sink))
    with pytest.raises(ConfigurationError, match="does not exist any more"):
        running.replace_partition("a", 2)


def test_snapshots_of_a_branch_expire(tmp_path: Path) -> None:
    sink, running, request = branch_with_rows(tmp_path)
    head = opened(sink).refs()[BRANCH].snapshot_id
    opened(sink).overwrite(opened(sink).scan(snapshot_id=head).to_arrow(), branch=BRANCH)  # as a compaction does
    kept = {ref.snapshot_id for ref in opened(sink).refs().values()}
    expired = [each.snapshot_id for each in opened(sink).snapshots() if each.snapshot_id not in kept]
    opened(sink).maintenance.expire_snapshots().by_ids(expired).commit()
    for attempt in (running, committer(sink, token=2)):
        put(attempt, request)
    assert rows_in(sink, BRANCH) == [1, 2, 3]


def test_a_branch_that_is_created_again_begins_anew(tmp_path: Path) -> None:
    sink, _, _ = branch_with_rows(tmp_path)
    remove(opened(sink))
    append(opened(sink), 9)
    expired = [each.snapshot_id for each in opened(sink).snapshots() if each.snapshot_id != current(opened(sink))]
    opened(sink).maintenance.expire_snapshots().by_ids(expired).commit()
    for _ in range(2):
        assert committer(sink).last_committed() == 0
        committer(sink).abort_lingering([])
    assert rows_in(sink, BRANCH) == [1, 9]


def test_a_branch_to_which_main_was_moved_may_be_made_anew_from_main(tmp_path: Path) -> None:
    sink, running, request = branch_with_rows(tmp_path)
    opened(sink).manage_snapshots().set_current_snapshot(ref_name=BRANCH).commit()
    remove(opened(sink))
    move(opened(sink), current(opened(sink)))
    put(running, request)
    assert (rows_in(sink, "main"), rows_in(sink, BRANCH)) == ([1, 2], [1, 2, 3])


def test_a_checkpoint_that_only_another_branch_has_is_added(tmp_path: Path) -> None:
    main, sink = sink_in(tmp_path), sink_in(tmp_path, branch=BRANCH)
    request = stage(main, 2, checkpoint_id=2)
    commit(main, stage(main, 1))
    committer(sink).abort_lingering([request])
    commit(main, request)
    assert (committer(main).last_committed(), committer(sink).last_committed()) == (2, 1)
    assert (commit(sink, request), commit(sink, request)) == (0, 1)
    assert (rows_in(sink, "main"), rows_in(sink, BRANCH)) == ([1, 2], [1, 2])


# --- jobs -------------------------------------------------------------------------------------------------------------


def jobs(folder: Path) -> StorageLocation:
    return StorageLocation(str(folder / "jobs" / "job"))


def forked(folder: Path, sink: Any) -> None:
    """Runs one epoch of a job, and forks it."""
    with HarnessAttempt(graph_of(sink), folder / "jobs") as attempt:
        attempt.run_epoch()
    fork_job(jobs(folder), "fork")


def one_epoch(sink: Any, folder: Path, job_id: str) -> bool:
    """Runs an epoch in an attempt of its own. Returns whether the job has ended."""
    with HarnessAttempt(graph_of(sink), folder / "jobs", job_id=job_id) as attempt:
        if not attempt.finished:
            attempt.run_epoch()
        return attempt.finished


STEPS: list[tuple[Any, str]] = [
    (SqlCatalog, "commit_table"),
    (IcebergCommitter, "_swap"),
    (StagedFileCommitter, "complete"),
]


@settings(max_examples=examples(6))
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    key=st.sampled_from([[], ["value"]]),
)
def test_a_fork_and_its_original_write_to_two_branches_of_a_table_wherever_they_die(
    tmp_path_factory: pytest.TempPathFactory, step: tuple[Any, str], when: str, numbers: list[int], key: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("job")
    main, fork = sink_in(folder, key=key), sink_in(folder, key=key, branch=BRANCH)
    forked(folder, main)
    committer(fork, type_info=main.row_type(EVENT)).abort_lingering([])  # the branch begins when the fork does
    left = {"fork": fork, "job": main}
    with dying(step, when, numbers):
        for _ in range(20):
            for job_id, sink in list(left.items()):
                try:
                    if one_epoch(sink, folder, job_id):
                        del left[job_id]
                except Crash:
                    pass
    assert left == {}
    for branch in ("main", BRANCH):
        assert rows_in(main, branch, "value") == list(range(9))


def test_a_fork_that_would_write_to_the_branch_of_the_original_is_refused(tmp_path: Path) -> None:
    for number, (before, after) in enumerate([("main", "main"), (BRANCH, BRANCH)]):
        (there := tmp_path / str(number)).mkdir()
        forked(there, sink_in(there, branch=before))
        said = r"sink 'sink' writes to file:///.*Give the sink of the fork another .*, table, branch or topic"
        with pytest.raises(ConfigurationError, match=said):
            one_epoch(sink_in(there, branch=after), there, "fork")
        one_epoch(sink_in(there, branch="other"), there, "fork")
    files = str(tmp_path / "files")
    forked(tmp_path / "parquet", ParquetSink(files))
    with pytest.raises(ConfigurationError, match="Both would write the same rows"):
        one_epoch(sink_in(tmp_path, branch="other", location=files), tmp_path / "parquet", "fork")


@pytest.mark.parametrize("way", ["put back", "chk-2"])
def test_a_branch_that_is_removed_between_two_runs_and_how_to_go_on(tmp_path: Path, way: str) -> None:
    sink = sink_in(tmp_path, branch=BRANCH)
    for _ in range(2):
        one_epoch(sink, tmp_path, "job")
    head = opened(sink).refs()[BRANCH].snapshot_id
    remove(opened(sink))
    with pytest.raises(CommitRefusedError, match=r"has committed checkpoint 2, but its target has nothing of it"):
        one_epoch(sink, tmp_path, "job")
    assert BRANCH not in opened(sink).refs()
    if way == "put back":
        move(opened(sink), head)
        one_epoch(sink, tmp_path, "job")
    else:
        with HarnessAttempt(graph_of(sink), tmp_path / "jobs", restore_from=way) as attempt:
            attempt.run_epoch()
    assert rows_in(sink, BRANCH, "value") == (list(range(9)) if way == "put back" else [6, 7, 8])


def test_a_branch_that_is_rolled_back_between_two_runs(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, branch=BRANCH)
    one_epoch(sink, tmp_path, "job")
    head = opened(sink).refs()[BRANCH].snapshot_id
    one_epoch(sink, tmp_path, "job")
    move(opened(sink), head)
    said = (
        "has committed checkpoint 2, but its target has only what was committed up to checkpoint 1 on record.*'chk-1'"
    )
    with pytest.raises(CommitRefusedError, match=said):
        one_epoch(sink, tmp_path, "job")
    with HarnessAttempt(graph_of(sink), tmp_path / "jobs", restore_from="chk-2") as attempt:
        attempt.run_epoch()
    assert rows_in(sink, BRANCH, "value") == [0, 1, 2, 6, 7, 8]


@pytest.mark.short
@pytest.mark.parametrize("branch", [BRANCH, "main"])
@pytest.mark.parametrize("between", ["switch", "stop", "chk-2"])
def test_what_is_gone_after_a_checkpoint_without_rows_is_noticed(tmp_path: Path, branch: str, between: str) -> None:
    sink = sink_in(tmp_path, branch=branch)
    for _ in range(2):
        one_epoch(sink, tmp_path, "job")
    if between == "stop":
        stop_with_savepoint(jobs(tmp_path), owner="me", now_ms=current_millis())
    else:
        path = between if between == "chk-2" else None
        with HarnessAttempt(graph_of(sink), tmp_path / "jobs", restore_from=path) as attempt:
            attempt.commit_restored()
    if branch == BRANCH:
        remove(opened(sink))
    else:
        opened(sink).catalog.drop_table(sink.table)
    said = r"has committed checkpoint 2, but its target has nothing of it on record.*or 'chk-3' to continue with those"
    with pytest.raises(CommitRefusedError, match=said):
        one_epoch(sink, tmp_path, "job")
    for restored in ("chk-3", None):  # once it is known, another checkpoint without rows is no reason to ask again
        with HarnessAttempt(graph_of(sink), tmp_path / "jobs", restore_from=restored) as attempt:
            attempt.commit_restored()
    if between != "stop":
        one_epoch(sink, tmp_path, "job")
        assert rows_in(sink, branch, "value") == [6, 7, 8]


def expire_but(table: Table, *kept: int) -> None:
    expired = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(expired).commit()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_branch_made_anew_at_main_does_not_have_what_has_expired_of_the_former_one(
    tmp_path: Path, goes_on: bool
) -> None:
    sink = sink_in(tmp_path, branch=BRANCH)
    one_epoch(sink, tmp_path, "job")
    remove(opened(sink))
    rows = opened(sink).scan().to_arrow()
    opened(sink).append(rows)
    expire_but(opened(sink), current(opened(sink)))
    move(opened(sink), current(opened(sink)))
    if goes_on:
        opened(sink).append(rows, branch=BRANCH)
    with pytest.raises(CommitRefusedError, match="has committed checkpoint 1, but its target has nothing of it"):
        one_epoch(sink, tmp_path, "job")


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_fork_begins_where_main_was_when_it_was_forked(tmp_path: Path, more: int) -> None:
    main, fork = sink_in(tmp_path), sink_in(tmp_path, branch=BRANCH)
    forked(tmp_path, main)
    for _ in range(more):
        one_epoch(main, tmp_path, "job")
    for _ in range(2):
        one_epoch(fork, tmp_path, "fork")
    assert rows_in(main, BRANCH, "value") == list(range(9))
    assert rows_in(main, "main", "value") == list(range(3 * (1 + more)))


def test_a_fork_of_which_nobody_knows_where_main_was_is_refused(tmp_path: Path) -> None:
    main, fork = sink_in(tmp_path), sink_in(tmp_path, branch=BRANCH)
    forked(tmp_path, main)
    at = current(opened(main))
    one_epoch(main, tmp_path, "job")
    opened(main).overwrite(opened(main).scan().to_arrow())  # as a compaction does
    expire_but(opened(main), current(opened(main)), at)
    said = r"checkpoint 1 of job 'job', which has added rows to 'main' since.*'main' without rows of later checkpoints"
    with pytest.raises(ConfigurationError, match=said):
        one_epoch(fork, tmp_path, "fork")
    assert BRANCH not in opened(main).refs()
    move(opened(main), at)
    for _ in range(2):
        one_epoch(fork, tmp_path, "fork")
    assert rows_in(main, BRANCH, "value") == list(range(9))


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_fork_of_a_fork_begins_where_the_branch_of_that_was(tmp_path: Path, epochs: int) -> None:
    main, first, second = (sink_in(tmp_path, branch=branch) for branch in ("main", BRANCH, "second"))
    forked(tmp_path, main)
    for _ in range(epochs):
        one_epoch(first, tmp_path, "fork")
    fork_job(jobs(tmp_path).parent.child("fork"), "second")
    one_epoch(main, tmp_path, "job")
    one_epoch(first, tmp_path, "fork")
    while not one_epoch(second, tmp_path, "second"):
        pass
    assert rows_in(main, "second", "value") == list(range(9))
    assert rows_in(main, "main", "value") == list(range(6))
    assert rows_in(main, BRANCH, "value") == list(range(6 + 3 * epochs))


def test_a_fork_of_a_fork_whose_branch_is_gone_is_refused(tmp_path: Path) -> None:
    forked(tmp_path, sink_in(tmp_path))
    one_epoch(sink_in(tmp_path, branch=BRANCH), tmp_path, "fork")
    fork_job(jobs(tmp_path).parent.child("fork"), "second")
    second = sink_in(tmp_path, branch="second")
    remove(opened(second))
    with pytest.raises(ConfigurationError, match=f"job 'fork', which has added rows to '{BRANCH}' since"):
        one_epoch(second, tmp_path, "second")
    assert "second" not in opened(second).refs()


@pytest.mark.parametrize("by_command", [False, True])
def test_a_job_that_begins_with_a_savepoint_of_another_one_begins_where_main_was(
    tmp_path: Path, by_command: bool
) -> None:
    main, branch = sink_in(tmp_path), sink_in(tmp_path, branch=BRANCH)
    one_epoch(main, tmp_path, "job")
    savepoint = trigger_savepoint(jobs(tmp_path))
    one_epoch(main, tmp_path, "job")
    path: str | None = savepoint
    if by_command:
        other = jobs(tmp_path).parent.child("other")
        restore_savepoint(other, StorageLocation(savepoint), owner="me", now_ms=current_millis())
        path = None
    for restored in (path, None):
        with HarnessAttempt(graph_of(branch), tmp_path / "jobs", job_id="other", restore_from=restored) as attempt:
            attempt.run_epoch()
    assert rows_in(main, BRANCH, "value") == list(range(9))
    assert rows_in(main, "main", "value") == list(range(6))


def test_a_job_that_is_restored_from_its_own_fork_has_no_other_beginning(tmp_path: Path) -> None:
    main = sink_in(tmp_path)
    forked(tmp_path, main)
    one_epoch(main, tmp_path, "job")
    one_epoch(sink_in(tmp_path, branch=BRANCH), tmp_path, "fork")
    fork = jobs(tmp_path).parent.child("fork")
    stores = [CompletedCheckpointStore(each.open()) for each in (fork, jobs(tmp_path))]
    assert [each.latest().ancestors for each in stores] == [(("job", 1),), ()]
    with HarnessAttempt(graph_of(main), tmp_path / "jobs", restore_from=trigger_savepoint(fork)) as attempt:
        attempt.run_epoch()
        assert attempt.latest.ancestors == ()


# --- the source -------------------------------------------------------------------------------------------------------


def test_a_source_reads_a_branch(tmp_path: Path) -> None:
    sink, running, request = branch_with_rows(tmp_path)
    source = IcebergSource(sink.table, sink.location, properties=sink.properties, bounded=False, branch=BRANCH)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1, 2]
    append(opened(sink), 7)
    put(running, request)
    assert take(source, enumerator) == [3]
    remove(opened(sink))
    with pytest.raises(InputChangedError, match=r"has no branch 'a/b.c'. Was it removed\? Create it again"):
        enumerator.plan_epoch(1)
