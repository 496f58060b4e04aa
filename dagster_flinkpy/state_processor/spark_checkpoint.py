"""What the checkpoint of a Spark streaming query has. Spark reads the state; here, only its logs of offsets are read.

The logs are lines of JSON: a version, and for ``offsets`` the batch's settings and one line per source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError, RestoreError, UnsupportedSavepointError
from dagster_flinkpy.spark.versions import arrow_schema, condition_of, to_arrow
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["QuerySource", "SparkCheckpoint", "SparkState"]

_Kind = Literal["VALUE", "LIST", "MAP", "TIMER"]

_BATCH_ROWS = 500_000
"""State partitions are read together until they have this many rows."""
_STATEFUL = "transformWithState"
_STORES = ("stateStoreSave", "dedupe", "dedupeWithinWatermark")
_KINDS: Mapping[str, tuple[_Kind, dict[str, str]]] = {
    "ValueState": ("VALUE", {"value": "value"}),
    "ListState": ("LIST", {"value": "list_element"}),
    "MapState": ("MAP", {"map_key": "user_map_key", "value": "user_map_value"}),
    "TimerState": ("TIMER", {"time": "expiration_timestamp_ms"}),
}
"""What Spark's kinds of state are here, and the columns of its source."""


@dataclass(frozen=True)
class SparkState:
    """A state of an operator of the query."""

    operator: int
    """The id of the operator."""
    name: str
    """The name of the state variable, ``timers``, or what Spark calls the operator."""
    kind: _Kind
    variable: bool
    """Whether it is a state variable of ``transformWithState``, or its timers."""
    schema: pa.Schema
    """``key``, and ``value``, ``map_key`` or ``time``; with a time to live ``expires_at``. Lists have a row per
    element, and maps one per entry."""
    time_mode: str = ""
    """Of timers: ``EventTime`` or ``ProcessingTime``."""
    ttl: bool = False
    """Whether its values expire."""

    @property
    def full_name(self) -> str:
        """The name, after the id of the operator."""
        return f"{self.operator}.{self.name}"

    def __str__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"{self.full_name} ({self.kind}: {columns})"


@dataclass(frozen=True)
class QuerySource:
    """A source of the query, and what of it was read."""

    number: int
    """Its place among the sources of the query, from 0."""
    offset: Any
    """Its offset as JSON; None before anything was read."""
    files: tuple[str, ...] | None = None
    """Of files: the URIs of those that were read."""

    @property
    def name(self) -> str:
        return f"sources/{self.number}"


class SparkCheckpoint:
    """The checkpoint of a Spark streaming query after its last committed batch.

    Args:
        location: The ``checkpointLocation`` of the query.
        session: The session that reads the state.

    Raises:
        RestoreError: There is no checkpoint, or no batch was committed.
    """

    def __init__(self, location: StorageLocation, session: SparkSession) -> None:
        self.location, self._session = location, session
        self._store = location.open()
        committed = self._batches("commits")
        if not committed:
            raise RestoreError(f"{location.url} is no checkpoint of a Spark streaming query with a committed batch")
        self.batch = max(committed)
        """The last batch that was committed."""

    @cached_property
    def _found(self) -> tuple[list[SparkState], dict[int, list[str]]]:
        states: list[SparkState] = []
        problems: dict[int, list[str]] = {}
        with_files = self._operators()
        operators = []
        if with_files:
            with self._reading():
                operators = self._session.read.format("state-metadata").load(self._path).collect()
        for operator in {row["operatorId"]: row for row in operators}.values():
            mine = problems.setdefault(operator["operatorId"], [])
            for state in _states_of(operator, mine):
                try:
                    states.append(self._typed(state))
                except UnsupportedSavepointError as error:
                    mine.append(f"state {state.full_name}: {error}")
        for number in with_files - set(problems):
            problems[number] = [
                f"operator {number} has state that Spark does not describe, as it does since version 3.5"
            ]
        return states, problems

    @property
    def states(self) -> Sequence[SparkState]:
        """The states that can be read.

        Raises:
            UnsupportedSavepointError: Spark cannot read the checkpoint.
        """
        return self._found[0]

    @property
    def problems(self) -> Mapping[int, Sequence[str]]:
        """Why other state cannot be read, by the id of the operator."""
        return self._found[1]

    @cached_property
    def sources(self) -> Sequence[QuerySource]:
        """The sources of the query.

        Raises:
            CorruptStateError: A file of the checkpoint is missing or damaged; the message names it.
            UnsupportedSavepointError: The log has another version.
        """
        found, log = [], f"offsets/{self.batch}"
        lines = self._lines(log)
        if len(lines) < 2:
            raise CorruptStateError(f"{self.location.url}/{log} has no sources")
        for number, line in enumerate(lines[1:]):
            offset = None if line == "-" else self._json(line, log)
            last = offset.get("logOffset") if isinstance(offset, dict) else None
            found.append(QuerySource(number, offset, self._files(number, last) if type(last) is int else None))
        return found

    def read(self, state: SparkState) -> Iterator[pa.Table]:
        """Reads a state, about 500,000 rows or one state partition at a time. All rows of a key are in one table.

        Raises:
            UnsupportedSavepointError: Spark cannot read it.
            CorruptStateError: The second time, Spark read another number of rows.
        """
        with self._reading():
            frame = self._frame(state).persist()  # so that the files are read once
            try:
                counted = frame.groupBy("partition_id").count().collect()
                for partitions, rows in _together([(row["partition_id"], row["count"]) for row in counted]):
                    some = frame.where(f"partition_id in ({', '.join(map(str, partitions))})")
                    table = to_arrow(some.drop("partition_id"))
                    if len(table) != rows:
                        raise CorruptStateError(
                            f"state {state.full_name}: {rows:,} rows were counted, {len(table):,} read"
                        )
                    yield table
            finally:
                frame.unpersist()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        local = self.location.local_path
        return self.location.url.replace("s3://", "s3a://", 1) if local is None else local.as_uri()

    def _typed(self, state: SparkState) -> SparkState:
        with self._reading():
            schema = arrow_schema(self._frame(state).drop("partition_id").schema)
        return replace(state, schema=schema)

    def _frame(self, state: SparkState) -> DataFrame:
        reader = self._session.read.format("statestore").option("operatorId", state.operator)
        reader = reader.option("batchId", self.batch)
        columns = dict(next(columns for kind, columns in _KINDS.values() if kind == state.kind))
        if state.ttl:
            columns |= {"expires_at": f"{columns['value']}.ttlExpirationMs", "value": f"{columns['value']}.value"}
        if state.kind == "TIMER":
            reader = reader.option("readRegisteredTimers", True)
        elif state.variable:
            reader = reader.option("stateVarName", state.name).option("flattenCollectionTypes", True)
        frame = reader.load(self._path)
        if state.name == "dedupe":  # the value is a field without a type
            columns["value"] = "true"
        elif not state.variable:
            columns["value"] = _with_names(frame.schema["value"].dataType)
        shown = (f"{column} as {name}" for name, column in columns.items())
        return frame.selectExpr("key", *shown, "partition_id")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            hint = ""
            if condition_of(error) == "DATA_SOURCE_NOT_FOUND":
                hint = ". State is read with PySpark 4.0 or newer"
            first = str(error).partition("\n")[0]
            raise UnsupportedSavepointError(
                f"Spark cannot read the state in {self.location.url}: {first}{hint}"
            ) from error

    # --- logs ---------------------------------------------------------------------------------------------------------

    def _batches(self, folder: str) -> dict[int, str]:
        """Returns the files of a log by their batch; of a compacted one, too."""
        found = {}
        for info in sorted(self._store.list(f"{folder}/"), key=lambda each: each.key):  # "9.compact" is after "9"
            number, _, kind = info.key.removeprefix(f"{folder}/").partition(".")
            if number.isdecimal() and kind in ("", "compact"):
                found[int(number)] = info.key
        return found

    def _operators(self) -> set[int]:
        """Returns the ids of the operators that have files of state."""
        names = (each.removeprefix("state/").rstrip("/") for each in self._store.list_folders("state/"))
        return {int(name) for name in names if name.isdecimal()}

    def _files(self, number: int, last: int) -> tuple[str, ...]:
        """Returns the files that a source has read, up to a batch of its log."""
        folder = f"sources/{number}"
        logs = {batch: name for batch, name in self._batches(folder).items() if batch <= last}
        first = max((batch for batch, name in logs.items() if name.endswith(".compact")), default=0)
        found: dict[str, None] = {}
        for batch in range(first, last + 1):
            if batch not in logs:
                raise CorruptStateError(f"{self.location.url}: there is no {folder}/{batch}")
            for line in self._lines(logs[batch]):
                entry = self._json(line, logs[batch])
                if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                    raise CorruptStateError(f"{self.location.url}/{logs[batch]}: {line!r} names no file")
                found[entry["path"]] = None
        return tuple(found)

    def _lines(self, name: str) -> list[str]:
        """Returns the lines of a log after its version."""
        try:
            version, *lines = self._store.get(name)[0].decode().split("\n")
        except (ObjectNotFoundError, UnicodeDecodeError) as error:
            raise CorruptStateError(f"{self.location.url}/{name} cannot be read: {error}") from error
        if version != "v1":
            raise UnsupportedSavepointError(f"{self.location.url}/{name} is a log of version {version!r}, not 'v1'")
        return [line for line in lines if line]

    def _json(self, line: str, name: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise CorruptStateError(f"{self.location.url}/{name}: {line!r} is not JSON") from error


def _with_names(kind: StructType) -> str:
    """Returns the column ``value`` with a number in names that occur again, as those of two sums do: Arrow needs it."""
    names = [field.name for field in kind]
    if len(set(names)) == len(names):
        return "value"
    seen: Counter[str] = Counter()
    fields = []
    for field in kind:
        seen[field.name] += 1
        name = field.name if seen[field.name] == 1 else f"{field.name}_{seen[field.name]}"
        fields.append(f"`{name}`: {field.dataType.simpleString()}")
    return f"cast(value as struct<{', '.join(fields)}>)"


def _together(counts: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], int]]:
    """Groups state partitions, given with their number of rows."""
    waiting: list[int] = []
    rows = 0
    for partition, count in sorted(counts):
        if waiting and rows + count > _BATCH_ROWS:
            yield waiting, rows
            waiting, rows = [], 0
        waiting.append(partition)
        rows += count
    if waiting:
        yield waiting, rows


def _states_of(operator: Any, problems: list[str]) -> Iterator[SparkState]:
    """Yields the states of a row of ``state-metadata``, without their schemas; adds why others cannot be read."""
    number, name = operator["operatorId"], operator["operatorName"]
    if name in _STORES:
        yield SparkState(number, name, "VALUE", False, pa.schema([]))
    elif name.startswith(_STATEFUL):
        properties = json.loads(operator["operatorProperties"])
        for variable in properties["stateVariables"]:
            kind, _ = _KINDS[variable["stateVariableType"]]
            called = "timers" if kind == "TIMER" else variable["stateName"]
            ttl = variable["ttlEnabled"]
            yield SparkState(number, called, kind, True, pa.schema([]), properties["timeMode"], ttl)
    else:
        problems.append(
            f"operator {number} is a {name}; transformWithState, aggregations and deduplication are imported"
        )
