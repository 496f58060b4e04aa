"""Real metadata with any piece removed, doubled or narrowed: it is refused, or the job continues correctly."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.head import HEAD_KEY, read_head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.validation import INVENTORY
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, FlinkPyError
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.test_bad_metadata import sealed
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_lost_objects import listing, rows
from tests.runtime.programs import COUNTED, environment, events

_HARMLESS = re.compile(
    r"without inventory|/program|/metrics|/splits/\d+/|/coordinator_state/(ended|lag)|/committables/\d+/"
    r"|narrower .*/runs/|properties/commits"
)
"""What may be missing: numbers for people, parts of splits that were read and of files that were committed, the fact
that the input has not ended, key groups without rows, and which sinks have committed before: whether their targets have
lost all rows is not noticed then."""
RECORDS = [(f"k{i % 5}", i * 10, i) for i in range(30)]


class Remembers(KeyedProcessFunction):
    """Keeps a count and all values so far. A timer emits both."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._values = runtime_context.get_list_state(ListStateDescriptor("values", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        self._values.add(value.value)
        ctx.timer_service().register_event_time_timer(value.time + 65)
        yield ctx.get_current_key(), self._count.value(), value.value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield f"timer of {ctx.get_current_key()}", timestamp, sum(self._values.get() or ())


def program(folder: Path) -> JobGraph:
    env = environment(2)
    remembered = events(env, RECORDS, per_epoch=10).key_by("key").process(Remembers(), COUNTED).uid("remembers")
    remembered.sink_to(ParquetSink(str(folder / "table"))).uid("table")
    return env.get_job_graph()


def finish(folder: Path) -> list[tuple[Any, ...]]:
    with HarnessAttempt(program(folder), folder / "state") as run:
        while not run.finished:
            run.run_epoch()
    return rows(folder)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a job after two of three epochs."""
    folder = tmp_path_factory.mktemp("template")
    with HarnessAttempt(program(folder), folder / "state") as run:
        run.run_epoch()
        run.run_epoch()
    return folder


Path_ = tuple[Any, ...]


def pieces(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yields the paths of all fields and elements."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*path, name)
        if name != INVENTORY:
            yield from pieces(child, (*path, name))


def at(body: Any, path: Path_) -> Any:
    for step in path:
        body = body[step]
    return body


def mutations(body: Any) -> Iterator[tuple[str, Any]]:
    """Yields descriptions, and the body with one change."""
    for path in pieces(body):
        where = "/".join(map(str, path))
        changed = copy.deepcopy(body)
        del at(changed, path[:-1])[path[-1]]
        yield f"without {where}", changed
        if isinstance(path[-1], int):
            changed = copy.deepcopy(body)
            siblings = at(changed, path[:-1])
            siblings.insert(path[-1], copy.deepcopy(siblings[path[-1]]))
            yield f"twice {where}", changed
        elif path[-1] == "key_groups":
            for end, step in ((0, 1), (1, -1)):
                changed = copy.deepcopy(body)
                at(changed, path)[end] += step
                yield f"narrower {where} at {end}", changed


@pytest.fixture(scope="module")
def body(template: Path) -> Any:
    name = str(template / "state/job/chk-2/_metadata")
    return CheckpointMetadata.from_bytes(Path(name).read_bytes(), name).to_json()


@pytest.fixture(scope="module")
def readable(body: Any) -> dict[str, bytes]:
    """Returns the mutations that the reader of metadata takes."""
    found, refused = {}, 0
    for what, changed in mutations(body):
        data = sealed(json.dumps(changed, separators=(",", ":")).encode())
        try:
            CheckpointMetadata.from_bytes(data, "mutation")
        except CorruptMetadataError:
            refused += 1
        else:
            found[what] = data
    assert refused > 250
    return found


@pytest.fixture(scope="module")
def expected(template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("straight")
    shutil.copytree(template, folder, dirs_exist_ok=True)
    return finish(folder)


@pytest.mark.system
@settings(max_examples=examples(200))
@given(data=st.data())
def test_any_piece(
    template: Path,
    readable: dict[str, bytes],
    expected: list[tuple[Any, ...]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    """``make soak`` draws each of them."""
    what = data.draw(st.sampled_from(list(readable)), "mutation")
    folder = tmp_path_factory.mktemp("mutated")
    shutil.copytree(template, folder, dirs_exist_ok=True)
    store = LocalObjectStore(folder / "state/job")
    store.put("chk-2/_metadata", readable[what])
    found = read_head(store)
    assert found is not None
    digest = hashlib.sha256(readable[what]).hexdigest()
    store.put(HEAD_KEY, replace(found[0], metadata_sha256=digest).to_bytes())
    try:
        assert finish(folder) == expected
    except FlinkPyError:
        return
    finally:
        shutil.rmtree(folder)
    assert _HARMLESS.search(what)


def test_a_checkpoint_that_could_not_be_restored_is_never_completed(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(template, tmp_path / "job")
    before = rows(tmp_path / "job")
    with HarnessAttempt(program(tmp_path / "job"), tmp_path / "job/state") as run:
        create = run._create_metadata

        def short(write: Any) -> CheckpointMetadata:
            metadata = create(write)
            operators = tuple(replace(o, subtasks=o.subtasks[:1]) for o in metadata.operators)
            return replace(metadata, operators=operators)

        monkeypatch.setattr(run, "_create_metadata", short)
        with pytest.raises(
            CheckpointError, match=r"was not written, because it could not be restored: .* no subtask 1"
        ):
            run.run_epoch()
    assert rows(tmp_path / "job") == before
    assert "chk-3/_metadata" not in listing(tmp_path / "job")
