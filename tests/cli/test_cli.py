from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from dagster_flinkpy import state_processor
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli import checkpoints as cli_checkpoints
from dagster_flinkpy.cli import main
from dagster_flinkpy.cli import savepoint as cli_savepoint
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.key_hashes import key_groups
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.operator_state_backend import OperatorStateBackend
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from tests.checkpoint import samples

IN_FLIGHT = Path(__file__).parents[1] / "fixtures" / "metadata" / "v1" / "in-flight"
COUNTS = {"ape": 3, "bee": 1, "cat": 2, "[red]dog": 5}


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def printed(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.output


def error_of(*args: object) -> str:
    """Returns the one line that a failed command prints."""
    result = run(*args)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


def state_of(store: ObjectStore, cache: RunCache, index: int) -> SubtaskState:
    """Returns the state of one of two subtasks, with word counts."""
    groups = compute_key_group_range_for_operator_index(16, 2, index)
    group_of = dict(zip(COUNTS, key_groups(Types.STRING().to_arrow(list(COUNTS)), 16), strict=True))
    words = [word for word in COUNTS if group_of[word] in groups]
    backend = ColumnarKeyedStateBackend(
        operator="count",
        key_groups=groups,
        max_parallelism=16,
        restored=None,
        store=store,
        cache=cache,
        inline_below=20_000 * index,  # the first subtask has a file, the second has its state in the metadata
    )
    backend.bind_key_type(Types.STRING())
    column = Types.STRING().to_arrow(words)
    backend.touch_column(column, hash_keys(Types.STRING(), column))
    state = backend.get_state(ValueStateDescriptor("count", Types.LONG()))
    for word in words:
        backend.set_current_key(word)
        state.update(COUNTS[word])
    operator_state = OperatorStateBackend("count", store, ())
    operator_state.get_list_state(ListStateDescriptor("seen", Types.LONG())).add_all([index, index + 10])
    rules = operator_state.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LIST(Types.LONG())))
    rules.put("large", list(range(10_000)))
    return SubtaskState(
        index, keyed=backend.snapshot(), operator_state=operator_state.snapshot(), watermark=1_360_000_000_000
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job with two retained checkpoints and an orphan."""
    checkpoints = CompletedCheckpointStore(StorageLocation(str(tmp_path / "checkpoints/words")).open(), num_retained=2)
    attempt = checkpoints.begin_attempt("test", 0)
    cache = RunCache(tmp_path / "cache")
    subtasks = tuple(state_of(checkpoints.store, cache, index) for index in range(2))
    count = OperatorState("count", "Count", 2, 16, subtasks=subtasks)
    for checkpoint_id in (1, 2, 3):
        metadata = CheckpointMetadata(
            "words",
            checkpoint_id,
            CheckpointKind.CHECKPOINT,
            checkpoint_id - 1 or None,
            1_360_000_000_000,
            None,
            attempt.token,
            "f",
            checkpoint_id == 3,
            (samples.source(), count),
            {},
        )
        checkpoints.write_metadata(attempt, metadata)
        checkpoints.complete(attempt, metadata)
    return tmp_path / "checkpoints/words"


@pytest.fixture
def savepoint(job: Path, tmp_path: Path) -> Path:
    store = StorageLocation(str(job)).open()
    metadata = CompletedCheckpointStore(store).latest()
    assert metadata is not None
    target = tmp_path / "savepoints"
    return target / write_savepoint(metadata, store, StorageLocation(str(target)).open())


# --- checkpoints list -------------------------------------------------------------------------------------------------


def test_list_checkpoints_of_a_job(job: Path) -> None:
    lines = printed("checkpoints", "list", job).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["words", "1", "orphan"],
        ["words", "2", "retained"],
        ["words", "3", "latest"],
    ]
    assert "chk-3/_metadata" in lines[3]


def test_list_checkpoints_of_all_jobs(job: Path) -> None:
    facts = json.loads(printed("checkpoints", "list", job.parent, "--json"))
    assert [(f["job"], f["checkpoint_id"], f["status"]) for f in facts] == [
        ("words", 1, "orphan"),
        ("words", 2, "retained"),
        ("words", 3, "latest"),
    ]


def test_sweep(job: Path) -> None:
    assert printed("checkpoints", "sweep", job) == "deleted 0 files, 0 bytes\n"
    assert printed("checkpoints", "sweep", job, "--older-than", "0 s", "--dry-run").startswith("would delete 1 files")
    assert printed("checkpoints", "sweep", job, "--older-than", "0 s").startswith("deleted 1 files")
    facts = json.loads(printed("checkpoints", "list", job, "--json"))
    assert [f["checkpoint_id"] for f in facts] == [2, 3]
    assert "give the folder of a job" in error_of("checkpoints", "sweep", job.parent)


def test_a_damaged_checkpoint_is_listed_as_such(job: Path) -> None:
    (job / "chk-2/_metadata").write_bytes(b"{")
    assert "damaged" in printed("checkpoints", "list", job).splitlines()[2]


def test_a_checkpoint_that_is_subsumed_while_they_are_listed_is_left_out(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = CompletedCheckpointStore.load

    def subsumed(checkpoints: CompletedCheckpointStore, which: int | str) -> CheckpointMetadata:
        (job / "chk-2/_metadata").unlink(missing_ok=True)
        return load(checkpoints, which)

    monkeypatch.setattr(CompletedCheckpointStore, "load", subsumed)
    assert [line.split()[1] for line in printed("checkpoints", "list", job).splitlines()[1:]] == ["1", "3"]


def test_no_checkpoints(tmp_path: Path) -> None:
    assert error_of("checkpoints", "list", tmp_path).startswith("Error: no job has checkpoints in file://")


# --- savepoint describe -----------------------------------------------------------------------------------------------


def test_describe(savepoint: Path) -> None:
    text = printed("savepoint", "describe", savepoint)
    assert ["job", "words"] in [line.split() for line in text.splitlines()]
    assert ["savepoint", "3"] in [line.split() for line in text.splitlines()]
    [count] = [line for line in text.splitlines() if line.startswith("count")]
    assert "count, rules, seen" in count
    assert "2013-02-04 17:46:40 UTC" in count


@pytest.mark.parametrize("suffix", ["", "/", "/_metadata"])
def test_describe_as_json(job: Path, suffix: str) -> None:
    document = json.loads(printed("savepoint", "describe", f"{job}/chk-3{suffix}", "--json"))
    metadata = CheckpointMetadata.from_json(document)
    assert (metadata.checkpoint_id, metadata.end_of_input) == (3, True)


def test_describe_lists_what_is_in_flight_on_blocking_edges() -> None:
    text = printed("savepoint", "describe", IN_FLIGHT / "job" / "chk-2")
    assert ["events.exchange", "events.exchange.counts", "1", "2", "4", "1,760"] in map(str.split, text.splitlines())
    with pytest.raises(RestoreError, match="Take an aligned savepoint: run the job once without"):
        state_processor.write_savepoint(str(IN_FLIGHT / "job" / "chk-2"))


def test_describe_one_operator_as_json(savepoint: Path) -> None:
    document = json.loads(printed("savepoint", "describe", savepoint, "--uid", "count", "--json"))
    assert [operator.uid for operator in CheckpointMetadata.from_json(document).operators] == ["count"]
    assert "no operator has uid 'counts'" in error_of("savepoint", "describe", savepoint, "--uid", "counts", "--json")


def test_names_are_shown_as_they_are(job: Path) -> None:
    """In brackets they were markup: parts of them were not shown, or the command failed with a traceback."""
    latest = job / "chk-3" / "_metadata"
    metadata = CheckpointMetadata.from_bytes(latest.read_bytes(), "it")
    source, count = metadata.operators
    named = replace(metadata, operators=(source, replace(count, name="[/no] [eu]")))
    latest.write_bytes(named.to_bytes())
    assert "[/no] [eu]" in printed("savepoint", "describe", job / "chk-3")


def test_who_has_read_enough_sees_no_error(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("dagster_flinkpy.cli.checkpoints.json.dumps", closed)
    result = run("checkpoints", "list", job, "--json")
    assert (result.output, type(result.exception)) == ("", SystemExit)


@pytest.mark.parametrize(("to", "shown"), [("", b"????????"), (">&-", b"")], ids=["a terminal of ASCII", "closed"])
def test_any_output_will_do(to: str, shown: bytes, savepoint: Path) -> None:
    """Also one that has no bars, or none at all."""
    code = "from dagster_flinkpy.cli import main; main()"
    command = (
        f"{shlex.quote(sys.executable)} -c '{code}' savepoint describe {shlex.quote(str(savepoint))} --uid count {to}"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout


def test_an_idle_subtask_does_not_hide_the_watermark(job: Path) -> None:
    latest = job / "chk-3" / "_metadata"
    metadata = CheckpointMetadata.from_bytes(latest.read_bytes(), "it")
    source, count = metadata.operators
    idle = replace(count, subtasks=(count.subtasks[0], replace(count.subtasks[1], watermark=None)))
    latest.write_bytes(replace(metadata, operators=(source, idle)).to_bytes())
    [line] = [
        line for line in printed("savepoint", "describe", f"{job}/chk-3").splitlines() if line.startswith("count")
    ]
    assert "2013-02-04 17:46:40 UTC" in line


def test_describe_a_job_is_its_latest_checkpoint(job: Path) -> None:
    assert json.loads(printed("savepoint", "describe", job, "--json"))["checkpoint_id"] == 3


def test_describe_what_is_no_savepoint(tmp_path: Path) -> None:
    assert "is not a savepoint" in error_of("savepoint", "describe", tmp_path)


def test_describe_damaged_metadata(savepoint: Path) -> None:
    data = (savepoint / "_metadata").read_bytes()
    (savepoint / "_metadata").write_bytes(data[:-9])
    assert str(savepoint.name) in error_of("savepoint", "describe", savepoint)


# --- state read -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["checkpoint", "savepoint", "job"])
def test_read_state_as_json(job: Path, savepoint: Path, where: str) -> None:
    path = {"checkpoint": job / "chk-3", "savepoint": savepoint, "job": job}[where]
    text = printed("state", "read", path, "--uid", "count", "--state", "count", "--format", "json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert {row["key"]: row["value"] for row in rows} == COUNTS
    assert {row["subtask"] for row in rows} == {0, 1}


def test_read_state_as_a_table(savepoint: Path) -> None:
    text = printed("state", "read", savepoint, "--uid", "count", "--state", "count")
    assert {tuple(line.split()[-2:]) for line in text.splitlines()[1:]} == {(k, str(v)) for k, v in COUNTS.items()}


def test_read_state_as_parquet(savepoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.parquet"
    printed("state", "read", savepoint, "--uid", "count", "--state", "count", "--format", "parquet", "--output", file)
    table = pq.read_table(file)
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == COUNTS


def test_read_operator_state(savepoint: Path) -> None:
    text = printed("state", "read", savepoint, "--uid", "count", "--state", "seen", "--format", "json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["subtask"], row["value"]) for row in rows] == [(0, 0), (0, 10), (1, 1), (1, 11)]
    text = printed("state", "read", savepoint, "--uid", "count", "--state", "rules", "--format", "json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["subtask"], row["key"], len(row["value"])) for row in rows] == [(0, "large", 10_000)]  # one copy


@pytest.mark.parametrize("limit", [0, 1, 3, 9])
def test_limit(savepoint: Path, limit: int) -> None:
    args = ("state", "read", savepoint, "--uid", "count", "--state", "count", "--format", "json", "--limit", limit)
    assert len(printed(*args).splitlines()) == min(limit, 4)


def test_unknown_uid_and_state_name_what_there_is(savepoint: Path, tmp_path: Path) -> None:
    assert "the uids are: count, flights" in error_of("state", "read", savepoint, "--uid", "x", "--state", "count")
    file = tmp_path / "out.json"
    args: list[Any] = [
        "state",
        "read",
        savepoint,
        "--uid",
        "count",
        "--state",
        "x",
        "--format",
        "json",
        "--output",
        file,
    ]
    assert "it has: count, rules, seen" in error_of(*args)
    assert not file.exists()


def test_missing_state_file_is_named(savepoint: Path) -> None:
    for file in (savepoint / "shared").glob("*.parquet"):
        file.unlink()
    assert "shared/" in error_of("state", "read", savepoint, "--uid", "count", "--state", "count")


def test_parquet_needs_an_output(savepoint: Path) -> None:
    result = run("state", "read", savepoint, "--uid", "count", "--state", "count", "--format", "parquet")
    assert result.exit_code == 2
    assert "--output" in result.stderr


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_on_s3(job: Path, s3_location: StorageLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(s3_location.access_key_id))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(s3_location.secret_access_key))
    store = s3_location.child("words").open()
    for info in StorageLocation(str(job)).open().list():
        store.put(info.key, (job / info.key).read_bytes())
    options = ("--endpoint-url", s3_location.endpoint_url)
    assert "latest" in printed("checkpoints", "list", s3_location.url, *options)
    path = f"{s3_location.url}/words/chk-3"
    text = printed("state", "read", path, "--uid", "count", "--state", "count", "--format", "json", *options)
    assert len(text.splitlines()) == len(COUNTS)


# --- savepoint describe --uid, savepoint verify, progress -------------------------------------------------------------


def test_subtasks_of_an_operator(savepoint: Path) -> None:
    lines = printed("savepoint", "describe", savepoint, "--uid", "count").splitlines()
    assert lines[0].split()[:3] == ["subtask", "key", "groups"]
    rows = [line.split() for line in lines[1:3]]
    assert [row[:2] for row in rows] == [["0", "0..7"], ["1", "8..15"]]
    assert sum(int(row[2]) for row in rows) == len(COUNTS)
    most = max(rows, key=lambda row: int(row[2]))
    assert most[-1] == "\u2588" * 30
    assert f"skew of subtasks: the largest is {2 * int(most[2]) / len(COUNTS):.2f} times the mean" in lines
    assert lines[-1].startswith("skew of key groups")


def test_subtasks_of_an_operator_that_is_not_there(savepoint: Path) -> None:
    said = error_of("savepoint", "describe", savepoint, "--uid", "counts")
    assert said == "Error: no operator has uid 'counts'; the uids are: flights, count"


@pytest.mark.parametrize("of", ["job", "chk", "savepoint"])
def test_verify(job: Path, savepoint: Path, of: str) -> None:
    path = {"job": job, "chk": job / "chk-3", "savepoint": savepoint}[of]
    assert ": all checksums match" in printed("savepoint", "verify", path)
    assert f"{len(COUNTS)} rows of keyed state and timers, the same at parallelism" in printed(
        "savepoint", "verify", path, "--drill"
    )


def test_verify_names_what_is_damaged(job: Path) -> None:
    broken = next((job / "shared").glob("*.parquet"))
    broken.write_bytes(b"no state")
    said = error_of("savepoint", "verify", job)
    assert broken.name in said
    assert "is damaged: its checksum differs" in said


def test_progress_counts_what_has_been_read_and_deleted(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, list[int | None]] = {}

    @contextmanager
    def progress(what: str, of: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        counted[what] = [total, 0]

        def advance(more: int) -> None:
            counted[what][1] = (counted[what][1] or 0) + more

        yield advance

    for module in (cli_checkpoints, cli_savepoint):
        monkeypatch.setattr(module, "progress", progress)
    printed("savepoint", "verify", job, "--drill")
    files = len(read_metadata_files(job))
    assert counted["reading"] == [files, files]
    assert counted["restoring"] == [None, 2 + 3 + 2 + 3], "two operators, before and after"
    (job / "shared" / f"9-9-{'0' * 64}.parquet").write_bytes(b"orphan")
    os.utime(job / "shared" / f"9-9-{'0' * 64}.parquet", (0, 0))
    printed("checkpoints", "sweep", job)
    assert counted["deleting"] == [None, 1]


def test_dispose_of_several(job: Path, savepoint: Path) -> None:
    metadata = CompletedCheckpointStore(StorageLocation(str(job)).open()).latest()
    assert metadata is not None
    store = StorageLocation(str(job)).open()
    target = savepoint.parent
    other = target / write_savepoint(metadata, store, StorageLocation(str(target)).open())
    assert printed("savepoint", "dispose", savepoint, other).splitlines() == [
        f"deleted {savepoint}",
        f"deleted {other}",
    ]
    assert not (savepoint / "_metadata").exists()
    assert not (other / "_metadata").exists()


def read_metadata_files(job: Path) -> set[str]:
    metadata = CompletedCheckpointStore(StorageLocation(str(job)).open()).latest()
    assert metadata is not None
    return set(metadata.files())
