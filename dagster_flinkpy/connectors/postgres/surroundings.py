"""What the changes of a table depend on besides the WAL, and whether somebody has changed it since it was last seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres.columns import columns_of_table
from dagster_flinkpy.connectors.postgres.slot import ReplicationSlot, lsn_text
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["Surroundings"]


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
