"""Plans which changes of a table of PostgreSQL an epoch reads, and tells the slot what is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres.columns import check_columns, columns_of_table
from dagster_flinkpy.connectors.postgres.connection import connect, row_of, untimed
from dagster_flinkpy.connectors.postgres.slot import ReplicationSlot, lsn_text, slot_of
from dagster_flinkpy.connectors.sources.split_enumerators import EndingEnumerator
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    SourceLag,
    SourceSplit,
    SplitEnumeratorContext,
    position_field,
)
from dagster_flinkpy.errors import RestoreError, SourceReadError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["PostgresChangeEnumerator", "Surroundings"]


@dataclass(frozen=True)
class Surroundings(JsonRecord):
    """What a position in the changes of a table belongs to."""

    system: str
    """The database cluster."""
    table: Count
    """The id of the table."""
    timeline: Count | None = None
    """The timeline of its WAL. None in positions of older releases, as in the fields below."""
    publication: str | None = None
    """The mark of the publication."""
    columns: dict[str, int] = field(default_factory=dict)
    """The numbers of the columns that are read; 0 for one that the table does not have."""
    key: list[str] | None = None
    """The columns that a deleted row has in mode ``upsert``."""
    partitions: dict[str, str] | None = None
    """The ids of the partitions, with their marks."""

    @staticmethod
    def of(slot: ReplicationSlot, source: PostgresChangeSource) -> Surroundings:
        table, there = slot.table(), columns_of_table(slot.connection, slot.table_name)
        columns = {name: there[name].number if name in there else 0 for name in source.table_type.field_names}
        system, timeline = slot.system()
        mark, partitions = slot.publication.mark(table), slot.partitions(table)
        return Surroundings(system, table, timeline, mark, columns, slot.key(table), partitions)

    def followed_by(self, now: Surroundings, slot: ReplicationSlot, position: int) -> Surroundings:
        """Returns those with which the source goes on from a position."""
        table, since = slot.table_name, f"the changes of table {slot.table_name} up to {lsn_text(position)}"
        if now.system != self.system:
            raise RestoreError(
                f"the state has read the changes of table {table} in database cluster {self.system}, but this is "
                f"cluster {now.system}, with a WAL of its own. Connect to the former one, or start from empty state "
                "with snapshot=True"
            )
        branched = None if self.timeline in (None, now.timeline) else slot.end_of(self.timeline or 0)
        flushed = slot.flushed()
        if flushed < position or (self.timeline not in (None, now.timeline) and (branched or 0) < position):
            raise RestoreError(
                f"the state has read {since}, but the server was reset to an earlier state, of "
                f"{lsn_text(min(flushed, branched or flushed))}, as by a backup or a standby that lacked some WAL. So "
                f"the job knows changes that no longer happened. {slot.way_on}"
            )
        if now.table != self.table:
            raise RestoreError(
                f"table {table} was dropped and created anew, or another one has its name, since the changes up to "
                f"{lsn_text(position)} were read, so its rows are others. {slot.way_on}"
            )
        if now.publication is None or self.publication not in (None, now.publication):
            repair = slot.publication.repair(now.table)
            raise RestoreError(
                f"publication {slot.publication.name!r} was changed after {since} were read. PostgreSQL publishes "
                "changes as the publication was when they were made, so some can be missing, whatever it is now. "
                f"{f'First put it right: {repair}. ' if repair is not None else ''}{slot.way_on}"
            )
        before = {name: self.columns.get(name) or number for name, number in now.columns.items()}
        if moved := [name for name, number in now.columns.items() if number not in (0, before[name])]:
            raise RestoreError(
                f"column {moved[0]!r} of table {table} was dropped and added again after {since} were read: no change "
                "says that its values are gone. Declare a row_type without the column. Or else: "
                f"{slot.way_on}"
            )
        self._check_partitions(now, slot, since)
        key = now.key if self.key is None else self.key
        return Surroundings(now.system, now.table, now.timeline, now.publication, before, key, now.partitions)

    def _check_partitions(self, now: Surroundings, slot: ReplicationSlot, since: str) -> None:
        """Checks that partitions were empty when they were attached: no change says that there are rows."""
        known = now.partitions if self.partitions is None else self.partitions
        for oid, mark in (now.partitions or {}).items():
            # Earlier releases knew the first part of the mark.
            same = (known or {}).get(oid) in (mark, mark.split()[0])
            if not same and (name := slot.attached_with_rows(now.table, oid)) is not None:
                raise RestoreError(
                    f"partition {name} was attached with rows after {since} were read, and no change says that they "
                    f"are there. {slot.way_on}"
                )


_IDLE_BYTES = 64 << 20
"""After how much WAL without changes of the table an epoch runs: its checkpoint lets the server delete the WAL."""


class PostgresChangeEnumerator(EndingEnumerator):
    """Assigns ranges of the WAL. All transactions whose commit begins in a range belong to it.

    State: the LSN before which everything was assigned; what it belongs to (`Surroundings`), such as the table and the
    database cluster; and whether the input has ended. A bounded input ends at the LSN ``end``. If the rows that the
    table had are read first, ``snapshot`` is empty until that epoch is planned, and then says which transactions these
    rows have seen.
    """

    def __init__(self, source: PostgresChangeSource, restored: Json | None) -> None:
        super().__init__(source.limits, source.discovery_interval)
        self._source = source
        self._lsn: int | None = None
        self._end: int | None = None
        self._surroundings: Surroundings | None = None
        self._snapshot: Json | None = None
        self._exporting: psycopg.Connection[Any] | None = None
        self._behind: int | None = None
        """How many bytes of WAL there were after what was planned last."""
        self._snapshots: dict[int, int] = {}
        """The position of each checkpoint that is not complete."""
        self._complete = 0
        """The position of the last checkpoint that is complete."""
        if restored is not None:
            self._lsn = self._complete = position_field(restored, "lsn", int)
            self._end = None if restored.get("end") is None else position_field(restored, "end", int)
            self._surroundings = Surroundings.from_json(restored)
            self._snapshot = None if restored.get("snapshot") is None else position_field(restored, "snapshot", dict)
            self._ended = position_field(restored, "ended", bool)

    def start(self, context: SplitEnumeratorContext) -> None:
        super().start(context)
        if self._ended:
            return
        with slot_of(self._source) as slot:
            slot.check_server()
            slot.check_table()
            check_columns(slot.table_name, columns_of_table(slot.connection, slot.table_name), self._source.table_type)
            if self._lsn is None:
                slot.publication.create(slot.table())
                self._surroundings = Surroundings.of(slot, self._source)  # before the position, so that it covers it
                self._begin(slot)
            else:
                self._check(slot)
                slot.publication.create(slot.table())

    def _begin(self, slot: ReplicationSlot) -> None:
        self._lsn, name = slot.position(), self._source.slot
        if self._lsn is None:
            self._progress(f"creating replication slot {name!r}: it waits for the transactions that are in flight")
            self._lsn = slot.create()
            self._progress(
                f"created replication slot {name!r}, for changes of table {slot.table_name} since "
                f"{lsn_text(self._lsn)}. The server keeps WAL until the job has read it. When nobody runs the job any "
                f"more: {slot.drop}"
            )
        else:
            self._progress(
                f"replication slot {name!r} exists: the source begins with the changes since {lsn_text(self._lsn)}"
            )
        if self._source.snapshot:
            self._snapshot = {}

    def has_input(self, parallelism: int) -> bool | None:
        if self._lsn is None or self._surroundings is None or self._snapshot == {} or self._source.bounded is not False:
            return None  # the slot is still to be created, or the table to be read
        with slot_of(self._source) as slot:
            confirmed, flushed = slot.position(), slot.flushed()
            if confirmed is None or flushed - confirmed >= _IDLE_BYTES:
                return True
            return bool(slot.transactions(self._table, self._lsn, flushed, 1)[0])

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        if self._ended:
            return shares
        with slot_of(self._source) as slot:
            confirmed = self._check(slot)
            if self._snapshot == {}:
                shares[0].append(self._read_table(slot))
                return shares
            start, flushed = self._position, slot.flushed()
            if self._source.bounded is not False:
                self._end = flushed = flushed if self._end is None else self._end
            stop, changes = self._stop(slot, start, flushed)
            self._check(slot)  # what was just decoded was decoded with what was there all the time
            if changes or stop - confirmed >= _IDLE_BYTES:
                assert self._surroundings is not None
                given: Json = {"start": start, "stop": stop, "table": self._table}
                given |= {"key": self._surroundings.key, "seen": self._snapshot}
                shares[0].append(SourceSplit(f"{lsn_text(start)}-{lsn_text(stop)}", given))
            self._lsn = stop
            self._behind = slot.flushed() - stop
        self._ended = self._lsn == self._end
        return shares

    @property
    def _position(self) -> int:
        assert self._lsn is not None, "start() has set it"
        return self._lsn

    @property
    def _table(self) -> int:
        assert self._surroundings is not None, "start() has set it"
        return self._surroundings.table

    def _check(self, slot: ReplicationSlot) -> int:
        """Checks that no change is missing, tells the slot what is complete, and returns its position."""
        assert self._surroundings is not None
        now = Surroundings.of(slot, self._source)
        self._surroundings = self._surroundings.followed_by(now, slot, self._position)
        confirmed = slot.position()
        if confirmed is None or confirmed > self._position:
            raise slot.gone(self._position, confirmed)
        slot.confirm(self._complete)
        return max(confirmed, self._complete)

    def _read_table(self, slot: ReplicationSlot) -> SourceSplit:
        """Plans to read the rows that the table has, in a snapshot that stays until they are read."""
        connection = self._exporting = connect(self._source.conninfo, "flinkpy source")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = 0; {untimed('SET LOCAL')}")
        # TRUNCATE and ALTER TABLE would take the rows from the snapshot.
        connection.execute(f"LOCK TABLE {slot.table_name} IN ACCESS SHARE MODE".encode())
        snapshot, visible = row_of(connection, "SELECT pg_export_snapshot(), pg_current_snapshot()::text")
        inserted, micros = row_of(
            connection, "SELECT pg_current_wal_insert_lsn() - '0/0', (extract(epoch FROM now()) * 1000000)::bigint"
        )
        # A crash of the server would take what was committed with synchronous_commit = off, and others get its numbers.
        with slot.connection.transaction():
            slot.connection.execute(
                "SET LOCAL synchronous_commit = local; SELECT pg_logical_emit_message(true, 'flinkpy', '')"
            )
        # The commits of all transactions that the snapshot sees are before this position.
        self._snapshot = {"visible": visible, "before": int(inserted)}
        return SourceSplit(f"rows of {slot.table_name}", {"snapshot": snapshot, "micros": int(micros)})

    def _stop(self, slot: ReplicationSlot, start: int, flushed: int) -> tuple[int, bool]:
        """Returns the LSN before which an epoch reads, and whether there are changes to read."""
        limit, size = self._source.limits.records, self._source.limits.bytes
        if size is None or start + size >= flushed:
            found, complete = slot.transactions(self._table, start, flushed, limit or 1)
            if limit is None or not found:
                return flushed, bool(found)
        else:
            found, complete = slot.transactions(self._table, start, start + size, limit)[0], False
            if not found:  # the next one has more bytes, or is not there
                found = slot.transactions(self._table, start, flushed, 1)[0][:1]
            if not found:
                return flushed, False
        taken, changes = 0, 0
        for transaction in found:
            changes += transaction.changes
            if taken and limit is not None and changes > limit:
                break
            taken += 1
        if complete and taken == len(found):
            return flushed, True
        return min(found[taken - 1].end, flushed), True

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        # They are read to their ends, or planned again from the last checkpoint.
        if self._exporting is not None and any("snapshot" in split.properties for split in splits):
            self._exporting.close()
            self._exporting = None

    def on_snapshot(self, checkpoint_id: int) -> None:
        if self._lsn is not None:
            self._snapshots[checkpoint_id] = self._lsn

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for number in sorted(self._snapshots):
            if number <= checkpoint_id:
                self._complete = self._snapshots.pop(number)
        try:
            with slot_of(self._source) as slot:
                slot.confirm(self._complete)
        except SourceReadError as error:  # the next epoch or attempt confirms it
            self._progress(
                f"replication slot {self._source.slot!r} does not know of checkpoint {checkpoint_id}: {error}"
            )

    def unread(self) -> Sequence[str]:
        with slot_of(self._source) as slot:
            if slot.position() is None:
                return []
            found, _ = slot.transactions(self._table, self._position, slot.flushed(), 1)
        return [f"changes of table {slot.table_name} up to {lsn_text(each.end)}" for each in found[-1:]]

    def lag(self) -> SourceLag:
        return SourceLag(bytes=self._behind)

    def snapshot_state(self) -> Json:
        surroundings = {} if self._surroundings is None else self._surroundings.to_json()
        return {"lsn": self._lsn, "end": self._end, **surroundings, "snapshot": self._snapshot, "ended": self._ended}
