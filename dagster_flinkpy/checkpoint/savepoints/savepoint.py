"""Savepoints: folders with a ``_metadata`` and, except in native savepoints, all files that it names."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.metadata import (
    COMMITS,
    METADATA_NAME,
    CheckpointKind,
    CheckpointMetadata,
    fetch_metadata,
)
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER, OperatorState, SubtaskState
from dagster_flinkpy.common.daemon_threads import in_daemon_threads
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CorruptStateError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RestoreError,
    SavepointOutcomeUnknownError,
    StorageError,
)
from dagster_flinkpy.json_records import Json
from dagster_flinkpy.state.files.run_file import as_file, upload_run
from dagster_flinkpy.state.files.state_files import file_of, sha256_of, state_file
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.object_store import put_if

__all__ = [
    "as_savepoint",
    "copy_files",
    "files_location",
    "has_pickled_values",
    "import_savepoint",
    "load_savepoint",
    "pickled_state",
    "write_savepoint",
]

_THREADS = 8
_FORMAT_TYPE = "savepoint_format_type"
"""Property of a savepoint that is not canonical."""
_PICKLED = json.dumps(PickledBytesTypeInfo().to_json()["type"])


def write_savepoint(
    metadata: CheckpointMetadata,
    source: ObjectStore,
    target: ObjectStore,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    *,
    name: str = "",
    go_on: Callable[[bool], object] = lambda appears: None,
) -> str:
    """Writes a savepoint of a checkpoint.

    A native savepoint may be written while a run is active, and that run deletes files that no checkpoint needs. The
    run lists native savepoints after it has replaced HEAD, and this function reads HEAD after it has written the
    savepoint. So either the run sees the savepoint, or the savepoint is given up because HEAD no longer keeps its
    checkpoint.

    Args:
        metadata: A fully acknowledged checkpoint. For a native savepoint it must be completed.
        source: The store with its files, rooted at the job's prefix.
        target: The folder in which to create the savepoint's folder; see
            :func:`~dagster_flinkpy.checkpoint.locations.savepoint_target.check_target`.
        format_type: The format. A native savepoint must be written where its files are.
        name: The last part of the folder's name, which no other savepoint may have. Default: random.
        go_on: Called before each file is copied with False, and with True before the savepoint appears. It raises to
            give the savepoint up.

    Returns:
        The savepoint's folder in ``target``: ``savepoint-{job}-{name}``, with the suffix ``-native`` for a native
        one. Its ``_metadata`` is written last, so the savepoint does not exist before it is complete.

    Raises:
        CorruptStateError: A file is missing or damaged, or the checkpoint was subsumed in the meantime.
        CheckpointError: The metadata is not JSON.
        SavepointOutcomeUnknownError: The store failed when the savepoint was to appear, and it could not be deleted.
        StorageError: The savepoint could not be written.
    """
    native = format_type is SavepointFormatType.NATIVE
    folder = f"savepoint-{metadata.job_id}-{name or secrets.token_hex(6)}{'-native' if native else ''}"
    savepoint = as_savepoint(metadata, metadata.operators, format_type)
    savepoint.to_bytes()  # fails before anything is copied
    store, appears = target.child(folder), False
    try:
        if not native:
            operators = tuple(
                replace(o, subtasks=copy_files(o.subtasks, source, store, go_on)) for o in savepoint.operators
            )
            _copy({path: sha256_of(path) for o in operators for path in o.segments()}, source, store, go_on=go_on)
            savepoint = replace(savepoint, operators=operators)
        go_on(True)
        appears = True
        put_if(store, METADATA_NAME, savepoint.to_bytes(), None)
        if native and ((head := read_head(source)) is None or metadata.checkpoint_id not in head[0].kept):
            raise CorruptStateError(
                f"{source.url} no longer keeps checkpoint {metadata.checkpoint_id}, and a native savepoint needs its "
                "files; take a native savepoint of the latest checkpoint, or a canonical one"
            )
    except BaseException as error:
        _delete(store, appears, error)
        raise
    return folder


def _delete(store: ObjectStore, appears: bool, error: BaseException) -> None:
    """Deletes a savepoint that was not written."""
    try:
        store.delete(METADATA_NAME)  # first, because without it there is no savepoint
    except StorageError as again:
        if appears:
            raise SavepointOutcomeUnknownError(
                f"it is unknown whether there is a savepoint {store.url}: {error}. It could not be deleted either: "
                f"{again}. If it has a {METADATA_NAME}, delete it, and take another one"
            ) from error
    with suppress(StorageError):  # what stays is no savepoint
        store.delete_many([info.key for info in store.list()])


def as_savepoint(
    metadata: CheckpointMetadata,
    operators: tuple[OperatorState, ...],
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
) -> CheckpointMetadata:
    """Returns the metadata of a savepoint of a checkpoint, or of another savepoint, without the history of edges.

    Args:
        metadata: The checkpoint or the other savepoint.
        operators: The operators of the new savepoint.
        format_type: Format of the new savepoint.
    """
    without = (_FORMAT_TYPE, COMMITS)  # another job may restore it, of which the sinks have nothing
    properties = {name: value for name, value in metadata.properties.items() if name not in without}
    if format_type is not SavepointFormatType.CANONICAL:
        properties[_FORMAT_TYPE] = format_type.value
    operators = tuple(o if o.history is None else replace(o, history=None) for o in operators)
    return replace(metadata, kind=CheckpointKind.SAVEPOINT, operators=operators, properties=properties)


def files_location(metadata: CheckpointMetadata, folder: StorageLocation) -> StorageLocation:
    """Returns the location that the paths of files of a savepoint or checkpoint are relative to.

    Args:
        metadata: The savepoint or checkpoint.
        folder: Its folder.
    """
    own = metadata.kind is CheckpointKind.SAVEPOINT and _FORMAT_TYPE not in metadata.properties
    return folder if own else replace(folder, url=folder.url.rpartition("/")[0])


def load_savepoint(store: ObjectStore) -> CheckpointMetadata:
    """Reads the metadata of a savepoint.

    Args:
        store: The object store, rooted at the savepoint's folder.

    Raises:
        RestoreError: There is no savepoint.
        CorruptMetadataError: The metadata cannot be read.
    """
    try:
        data = fetch_metadata(store, METADATA_NAME)
    except ObjectNotFoundError as error:
        folder, _, name = store.url.rpartition("/")
        what = "Give the folder that contains that file."
        if name.startswith("chk-"):
            what = f"'flinkpy checkpoints list {folder}' shows the checkpoints that the job keeps."
        raise RestoreError(f"{store.url} is not a savepoint: it has no {METADATA_NAME}. {what}") from error
    return CheckpointMetadata.from_bytes(data, f"{store.url}/{METADATA_NAME}")


def import_savepoint(
    source: ObjectStore, job: ObjectStore, written_by: str = "", *, files: ObjectStore | None = None
) -> CheckpointMetadata:
    """Copies a savepoint's files to a job's prefix, so that the job's checkpoints can name them.

    The owner of the savepoint does not change (Flink: ``RestoreMode.NO_CLAIM``). It may be deleted afterwards.

    Args:
        source: The object store, rooted at the savepoint's folder.
        job: The object store, rooted at the job's prefix.
        written_by: Part of the names of the copies; see ``state_file``. Default: names are kept.
        files: The store that the paths of its files are relative to; see :func:`files_location`. Default: ``source``.

    Returns:
        The metadata, with the names of the copies.

    Raises:
        RestoreError: There is no savepoint, or it is a checkpoint, whose files are elsewhere.
        CorruptMetadataError: Its metadata cannot be read.
        CorruptStateError: A file is missing or damaged.
    """
    metadata = load_savepoint(source)
    if metadata.kind is not CheckpointKind.SAVEPOINT:
        raise RestoreError(
            f"{source.url} is a checkpoint, whose files belong to its job. That job goes back to it with --program, or "
            "with a run whose restore_from names it; in Dagster, its reset job does. For another job, take a savepoint."
        )
    checksums = _checksums(subtask for operator in metadata.operators for subtask in operator.subtasks)
    checksums |= {path: sha256_of(path) for operator in metadata.operators for path in operator.segments()}
    _copy(checksums, files or source, job, written_by)
    properties = {name: value for name, value in metadata.properties.items() if name != _FORMAT_TYPE}
    metadata = replace(metadata, properties=properties)  # the job owns the files now
    if not written_by:
        return metadata
    operators = (
        replace(
            o,
            subtasks=tuple(_renamed(s, written_by) for s in o.subtasks),
            in_flight=tuple(_segments_renamed(output, written_by) for output in o.in_flight),
        )
        for o in metadata.operators
    )
    return replace(metadata, operators=tuple(operators))


def pickled_state(metadata: CheckpointMetadata, *, untyped_edges: bool) -> tuple[str, ...]:
    """Returns the states of a checkpoint that a restore unpickles, as ``uid/state``. Unpickling can run their code.

    Args:
        metadata: The metadata of the checkpoint.
        untyped_edges: Whether the program has edges without a type. In-flight data is read with the types of the edges.
    """
    found: dict[str, None] = {}
    for operator in metadata.operators:
        for subtask in operator.subtasks:
            types = [(table.name, table.schema) for table in subtask.tables]
            types += [(handle.name, handle.types) for handle in subtask.operator_state]
            found |= {f"{operator.uid}/{name}": None for name, kind in types if has_pickled_values(kind)}
            if subtask.channel_state and untyped_edges:
                found[f"{operator.uid}/in-flight data"] = None
    return tuple(found)


def has_pickled_values(description: Any) -> bool:
    """Returns whether values of a type, or parts of them, are pickled.

    Args:
        description: The type information, or several, as JSON.
    """
    return _PICKLED in json.dumps(description)


def copy_files(
    subtasks: Sequence[SubtaskState],
    source: ObjectStore,
    target: ObjectStore,
    go_on: Callable[[bool], object] = lambda appears: None,
) -> tuple[SubtaskState, ...]:
    """Copies the files of subtasks. Runs that are part of the metadata become files, so that any tool can read them.

    Args:
        subtasks: The subtasks of one operator.
        source: The store that the paths of their files are relative to.
        target: The folder to write to; nothing else writes to it.
        go_on: Called before each file with False; see :func:`write_savepoint`.

    Returns:
        The subtasks, with all keyed state in files of the target.

    Raises:
        CorruptStateError: A file is missing or damaged.
    """
    _copy(_checksums(subtasks), source, target, go_on=go_on)

    def with_file(run: RunHandle) -> RunHandle:
        if run.data is None:
            return run
        handle = as_file(run)
        upload_run(target, handle, run.data)
        return handle

    return tuple(
        subtask.with_tables(lambda table: replace(table, runs=tuple(map(with_file, table.runs))))
        for subtask in subtasks
    )


def _checksums(subtasks: Iterable[SubtaskState]) -> dict[str, str]:
    checksums: dict[str, str] = {}
    for subtask in subtasks:
        checksums |= {path: sha256_of(path) for path in subtask.operator_state_files()}
        checksums |= {run.path: run.sha256 for table in subtask.tables for run in table.runs if run.data is None}
    return checksums


def _renamed(subtask: SubtaskState, written_by: str) -> SubtaskState:
    """Returns the state with new file names."""

    def parts(partitions: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(part if file_of(part) is None else {**part, "by": written_by} for part in partitions)

    def moved(run: RunHandle) -> RunHandle:
        return run if run.data is not None else replace(run, path=state_file(run.sha256, written_by))

    return replace(
        subtask.with_tables(lambda table: replace(table, runs=tuple(map(moved, table.runs)))),
        operator_state=tuple(replace(h, partitions=parts(h.partitions)) for h in subtask.operator_state),
        raw_keyed=parts(subtask.raw_keyed),
        channel_state=parts(subtask.channel_state),
    )


def _segments_renamed(output: Json, written_by: str) -> Json:
    segments = [{**segment, "key": _segment_key(segment["key"], written_by)} for segment in output["segments"]]
    return {**output, "segments": segments}


def _segment_key(path: str, written_by: str) -> str:
    """Returns the new path of a segment: the names of the last folder and of the file differ."""
    folder, _, name = path.rpartition("/")
    parent, slash, _ = folder.rpartition("/")
    token, _, checkpoint_id = written_by.partition("-")
    # The execution that wrote it does not matter any more, and two segments with the same content are the same.
    return f"{parent}{slash}{int(token):010d}-{int(checkpoint_id):010d}/{sha256_of(name)}.arrow"


def _copy(
    checksums: Mapping[str, str],
    source: ObjectStore,
    target: ObjectStore,
    written_by: str = "",
    go_on: Callable[[bool], object] = lambda appears: None,
) -> None:
    def copy(path: str) -> None:
        go_on(False)
        try:
            data, _ = source.get(path)
        except ObjectNotFoundError as error:
            raise CorruptStateError(f"{source.url}/{path} is missing, but a checkpoint names it") from error
        if hashlib.sha256(data).hexdigest() != checksums[path]:
            raise CorruptStateError(f"{source.url}/{path} is damaged: its content does not match its checksum")
        with suppress(PreconditionFailedError):  # named by content, so an existing file is the same
            name = path
            if written_by:
                segment = path.startswith(f"{EXCHANGE_FOLDER}/")
                name = _segment_key(path, written_by) if segment else state_file(checksums[path], written_by)
            target.put(name, data, if_none_match=True)

    in_daemon_threads(copy, checksums, _THREADS)
