"""Folders with any history of added, deleted and replaced files: each file is read once, or an error names it."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Duration, Types
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.files.known_files import KnownFiles
from dagster_flinkpy.datastream.connectors.base import Source, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.storage import ObjectInfo
from tests.examples import examples

NAMES = st.sampled_from(["-", "a", "a-", "aa", "a~", "b", "é", "𝒳"]).map(lambda stem: f"{stem}.parquet")
"""The names, in order."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES),
        st.tuples(st.just("write"), NAMES),
        st.tuples(st.just("epoch"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("epoch"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("epoch_fails"), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 7)),
        st.tuples(st.just("bring_back"), st.integers(0, 7)),
        st.tuples(st.just("move_away_what_was_named")),
        st.tuples(st.just("go_back"), st.integers(1, 3)),
    ),
    min_size=15,
    max_size=40,
)
BOUNDED = st.sampled_from([False, False, True])
ROW = Types.ROW_NAMED(["n"], [Types.LONG()])


@dataclass(frozen=True)
class Checkpoint:
    """The position of the source, and what the model says had been read by then."""

    position: str = "null"
    read: tuple[int, ...] = ()
    """Versions of files, in the order in which they were read."""
    last: str = ""
    """The greatest name that had been read."""
    listed: dict[str, int] = field(default_factory=dict)
    """The files up to that name that were in the folder at the last epoch, and their versions."""
    ended: bool = False


class _History:
    """A folder, and epochs that read it. Each write of a file gets a version number that is never used again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, int] = {}
        self.deleted: dict[str, int] = {}
        """The last version of each name."""
        self.versions = 0
        self.checkpoints = [Checkpoint()]
        self.bounded = False
        self.source: Source
        self.enumerator: SplitEnumerator | None = None

    def write(self, name: str) -> None:
        self.versions += 1
        self._put(name, self.versions)

    def _put(self, name: str, version: int) -> None:
        self.files[name] = version
        (self.root / name).write_bytes(b"x")
        os.utime(self.root / name, (version, version))

    def delete(self, number: int) -> None:
        if self.files:
            self._delete(sorted(self.files)[number % len(self.files)])

    def bring_back(self, number: int) -> None:
        """Puts a deleted file back, as it was."""
        if self.deleted:
            name = sorted(self.deleted)[number % len(self.deleted)]
            if name not in self.files:
                self._put(name, self.deleted[name])

    def _delete(self, name: str) -> None:
        self.deleted[name] = self.files.pop(name)
        (self.root / name).unlink()

    def move_away_what_was_named(self) -> None:
        for name in self.offenders(self.checkpoints[-1]):
            self._delete(name)

    def epoch_fails(self, restores: bool) -> None:
        self.epoch(1, restores, completes=False)

    def epoch(self, parallelism: int, restores: bool, *, completes: bool = True) -> None:
        before = self.checkpoints[-1]
        if restores or self.enumerator is None:
            self.enumerator = self.source.create_enumerator(json.loads(before.position))
        enumerator, offenders = self.enumerator, self.offenders(before)
        self.enumerator = None  # a failed epoch ends the attempt
        assert enumerator.exhausted is before.ended
        if before.ended:
            # The job refuses to continue if there are any.
            unread = {name.rpartition("/")[2] for name in enumerator.unread()}
            assert unread == {n for n, version in self.files.items() if version not in before.read}
            offenders = []
        try:
            plan = enumerator.plan_epoch(parallelism)
        except SourceReadError as error:
            if not self.files and self.bounded and not before.read:
                assert "there is no file" in str(error)
                return
            assert offenders, error
            assert any(repr(name)[1:-1] in str(error) for name in offenders)
            return
        assert not offenders
        planned = [split.split_id.rpartition("/")[2] for share in plan for split in share]
        assert sorted(planned) == ([] if before.ended else sorted(self.expected(before)))
        if completes:
            enumerator.on_epoch_read([split.advanced(1, finished=True) for share in plan for split in share])
            self.enumerator = enumerator
            last = max([before.last, *planned])
            self.checkpoints.append(
                Checkpoint(
                    json.dumps(enumerator.snapshot_state()),
                    (*before.read, *(self.files[name] for name in planned)),
                    last,
                    before.listed
                    if before.ended
                    else {name: version for name, version in self.files.items() if self.is_behind(name, last)},
                    before.ended or (self.bounded and all(self.is_behind(name, last) for name in self.files)),
                )
            )
            assert len(set(self.checkpoints[-1].read)) == len(self.checkpoints[-1].read)
            for name, version in self.checkpoints[-1].listed.items():
                assert version in self.checkpoints[-1].read, name
            position = enumerator.snapshot_state()
            assert len(KnownFiles.from_json(position)) == len(self.checkpoints[-1].listed), "it does not grow"

    def go_back(self, checkpoints: int) -> None:
        del self.checkpoints[max(len(self.checkpoints) - checkpoints, 1) :]
        self.enumerator = None

    def is_behind(self, name: str, last: str) -> bool:
        """Returns whether the source has passed the place of a file."""
        raise AssertionError

    def offenders(self, before: Checkpoint) -> list[str]:
        """Returns the files that the error of the next epoch must name."""
        raise AssertionError

    def expected(self, before: Checkpoint) -> list[str]:
        """Returns the files that the next epoch must read."""
        raise AssertionError


class ParquetHistory(_History):
    def __init__(self, root: Path, limit: int | None, bounded: bool) -> None:
        super().__init__(root)
        self.limit, self.bounded = limit, bounded
        self.source = ParquetSource(str(self.root), row_type=ROW, bounded=bounded, max_files_per_epoch=limit)

    def is_behind(self, name: str, last: str) -> bool:
        return name <= last

    def offenders(self, before: Checkpoint) -> list[str]:
        return sorted(n for n, version in self.files.items() if n <= before.last and version not in before.read)

    def expected(self, before: Checkpoint) -> list[str]:
        return sorted(name for name in self.files if name > before.last)[: self.limit]


class FileHistory(_History):
    def __init__(self, root: Path, bounded: bool) -> None:
        super().__init__(root)
        self.bounded = bounded
        files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(self.root))
        self.source = (files if bounded else files.monitor_continuously(Duration.of_seconds(1))).build()

    def is_behind(self, name: str, last: str) -> bool:
        return True

    def offenders(self, before: Checkpoint) -> list[str]:
        return sorted(n for n, version in self.files.items() if before.listed.get(n, version) != version)

    def expected(self, before: Checkpoint) -> list[str]:
        return [n for n, version in self.files.items() if n not in before.listed and version not in before.read]


def run(history: _History, steps: list[tuple[Any, ...]]) -> None:
    for name, *arguments in steps:
        getattr(history, name)(*arguments)


_AND_ANOTHER_IS_DELETED = [
    ("write", "-.parquet"),
    ("write", "b.parquet"),
    ("epoch", 1, True),
    ("delete", 0),
    ("write", "a.parquet"),
    ("write", "é.parquet"),
    ("epoch", 1, True),
]
"""A file comes too late, and the folder has as many files as were read."""


@settings(max_examples=examples(200), deadline=None)
@example(steps=_AND_ANOTHER_IS_DELETED, limit=None, bounded=False)
@given(steps=STEPS, limit=st.sampled_from([None, None, 1, 2]), bounded=BOUNDED)
def test_any_history_of_a_folder_of_parquet_files(
    steps: list[tuple[Any, ...]], limit: int | None, bounded: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run(ParquetHistory(Path(root), limit, bounded), steps)


@settings(max_examples=examples(200), deadline=None)
@given(steps=STEPS, bounded=BOUNDED)
def test_any_history_of_a_folder_of_text_files(steps: Any, bounded: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        run(FileHistory(Path(root), bounded), steps)


def info(key: str, size: int = 1, etag: str = "", second: int = 0) -> ObjectInfo:
    return ObjectInfo(key, size, etag, datetime.fromtimestamp(second, timezone.utc))


def test_a_version_is_the_etag_or_else_the_time() -> None:
    known = KnownFiles()
    known.add("a", info("a", etag="e"))
    known.add("b", info("b"))
    assert not known.has_changed("a", info("a", etag="e", second=5))
    assert known.has_changed("a", info("a", etag="f"))
    assert known.has_changed("a", info("a", size=2, etag="e"))
    assert known.has_changed("b", info("b", second=5))


def test_files_that_are_gone_take_no_place() -> None:
    known = KnownFiles()
    for number in range(100):
        known.add(f"{number}", info(f"{number}"))
    assert {name: len(text) for name, text in known.to_json().items()} == {"files": 2136}  # 1600 bytes as text
    known.compare({"7": info("7"), "nobody": info("nobody")})
    again = KnownFiles.from_json(known.to_json())
    assert (len(again), "7" in again, "8" in again, "nobody" in again) == (1, True, False, False)


def test_files_that_come_back_are_known_as_long_as_they_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.connectors.files.known_files._MOST_GONE", 2)
    files = {f"{number}": info(f"{number}") for number in range(5)}
    known = KnownFiles()
    for name, each in files.items():
        known.add(name, each)
    known.compare({})  # the folder is not mounted
    known.compare(files)
    assert len(known) == 5
    known.compare({"0": files["0"]})
    known = KnownFiles.from_json(known.to_json())
    assert [known.has_read(name, each) for name, each in files.items()] == [True, False, False, True, True]
    known.compare({"0": files["0"], "3": files["3"], "4": info("4", size=2)})
    assert (sorted(name for name in files if name in known), len(known)) == (["0", "3"], 2)
    known.add("4", info("4", size=2))
    assert not known.has_read("4", files["4"])


@pytest.mark.parametrize("data", ["?", "AAAA", None, 7])
def test_what_is_no_list_of_files_is_refused(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        KnownFiles.from_json({"files": data})


# --- positions stored by version 0.1 ----------------------------------------------------------------------------------


def stored(source: str, root: Path) -> Any:
    path = Path(__file__).parents[2] / "fixtures" / "positions" / "v1.json"
    return json.loads(path.read_text().replace("{root}", root.as_uri()))[source]


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).write_bytes(b"x\ny\n")
        os.utime(root / name, (1, 1))


def dealt_out(enumerator: SplitEnumerator) -> list[str]:
    plan = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([split.advanced(2, finished=True) for share in plan for split in share])
    return [split.split_id.rpartition("/")[2] for share in plan for split in share]


def parquet_source(root: Path) -> ParquetSource:
    return ParquetSource(str(root), row_type=ROW, bounded=False)


def text_source(root: Path) -> FileSource:
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(root))
    return files.monitor_continuously(Duration.of_seconds(1)).build()


def test_a_stored_number_of_files_is_taken_for_those_that_are_there(tmp_path: Path) -> None:
    put(tmp_path, "2.parquet", "3.parquet", "4.parquet")
    source, said = parquet_source(tmp_path), list[str]()
    enumerator = source.create_enumerator(stored("parquet", tmp_path))
    assert stored("parquet", tmp_path).items() <= enumerator.snapshot_state().items(), "nothing was listed yet"
    enumerator.start(SplitEnumeratorContext("job", 1, nullcontext, progress=said.append))
    assert dealt_out(enumerator) == ["3.parquet", "4.parquet"]
    (line,) = said
    assert "earlier release" in line
    assert "up to '3.parquet', which was 3" in line
    assert "The 2 files that exist now" in line
    enumerator = source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    put(tmp_path, "1.parquet")
    with pytest.raises(SourceReadError, match=r"1 file\(s\) \('1\.parquet'\) came too late"):
        enumerator.plan_epoch(1)


def test_more_files_than_the_stored_number_are_late(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.parquet" for number in (1, 2, 25, 3)))
    with pytest.raises(SourceReadError, match=r"1 file\(s\) were added to .* before '3\.parquet'"):
        parquet_source(tmp_path).create_enumerator(stored("parquet", tmp_path)).plan_epoch(1)


def test_stored_names_of_files_are_known(tmp_path: Path) -> None:
    put(tmp_path, "0.txt", "1.txt", "3.txt")
    source = text_source(tmp_path)
    enumerator = source.create_enumerator(stored("files", tmp_path))
    position = enumerator.snapshot_state()
    assert {name: position[name] for name in ("found", "listed")} == {
        name: stored("files", tmp_path)[name] for name in ("found", "listed")
    }
    plan = enumerator.plan_epoch(1)
    assert [[column.to_pylist() for column, _ in source.read(split)] for split in plan[0]] == [[["y"]], [["x", "y"]]]
    assert dealt_out(enumerator) == ["3.txt", "0.txt"]
    enumerator = source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    put(tmp_path, "2.txt")  # a file of this name was read and deleted; this is a new one
    assert dealt_out(enumerator) == ["2.txt"]


def test_a_check_that_only_counts_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a check misses a late file if another file is deleted between the same two epochs."""

    def counts(enumerator: Any, files: list[ObjectInfo]) -> list[ObjectInfo]:
        known = enumerator._known
        old = [each for each in files if enumerator._last is not None and each.key <= enumerator._last]
        late = [each for each in old if each.key not in known]
        changed = [each.key for each in old if each.key in known and known.has_changed(each.key, each)]
        if len(old) > len(known) or changed:
            raise SourceReadError(f"{[each.key for each in late]} {changed}")
        known.compare({each.key: each for each in old})
        for each in late:
            known.add(each.key, each)
        return files[len(old) :]

    monkeypatch.setattr("dagster_flinkpy.connectors.files.parquet_source._ParquetEnumerator._after_last", counts)
    with pytest.raises(AssertionError):
        run(ParquetHistory(tmp_path, None, False), _AND_ANOTHER_IS_DELETED)
