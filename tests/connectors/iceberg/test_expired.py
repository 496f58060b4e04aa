"""Snapshots that others let expire while a source reads a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.connectors import IcebergSource
from dagster_flinkpy.connectors.lake.table_source import TableSource
from dagster_flinkpy.errors import InputChangedError
from tests.connectors.iceberg.test_sink import commit, opened, sink_in, stage
from tests.connectors.lake.test_table_sources import restored, take


class Orders:
    """A table to which somebody adds rows, and what reads it."""

    def __init__(self, folder: Path) -> None:
        self.sink = sink_in(folder, location=str(folder / "t"))

    def add(self, checkpoint_id: int, *numbers: int) -> None:
        """Adds a file for each number, in one snapshot."""
        files = ((number, {"subtask": i, "execution": str(number)}) for i, number in enumerate(numbers))
        commit(self.sink, *(stage(self.sink, number, checkpoint_id=checkpoint_id, **how) for number, how in files))

    def source(self, **options: Any) -> TableSource:
        source = IcebergSource("db.t", self.sink.location, properties=self.sink.properties, **options)
        return source.continuous()

    def expire(self, count: int) -> None:
        """Removes the oldest snapshots as Spark and Java do. Unlike pyiceberg, they keep the names of parents."""
        table = opened(self.sink)
        before = Path(table.metadata_location.removeprefix("file://"))
        metadata = json.loads(before.read_text())
        gone = {snapshot.snapshot_id for snapshot in table.snapshots()[:count]}
        for part in ("snapshots", "snapshot-log"):
            metadata[part] = [each for each in metadata[part] if each["snapshot-id"] not in gone]
        after = before.with_name(f"99999-{before.name}")
        after.write_text(json.dumps(metadata))
        table.catalog.drop_table("db.t")
        table.catalog.register_table("db.t", str(after))


def test_a_snapshot_that_was_read_may_expire(tmp_path: Path) -> None:
    """The one after it names it as its parent, so nothing is missed. It was an error for good."""
    orders = Orders(tmp_path)
    orders.add(1, 1)
    source = orders.source()
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    orders.add(2, 2)
    orders.add(3, 3)
    orders.expire(1)
    enumerator = restored(source, enumerator)
    assert take(source, enumerator) == [2, 3]
    orders.add(4, 4)
    orders.add(5, 5)
    orders.expire(3)  # also one that was not read
    with pytest.raises(
        InputChangedError, match=r"up to which it was read, is no longer .* or one after it, has expired"
    ):
        take(source, restored(source, enumerator))


@pytest.mark.parametrize("skip_changes", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_a_snapshot_that_expires_amid_is_named(tmp_path: Path, first: bool, skip_changes: bool) -> None:
    """It was said to delete rows, and to be left out with skip_changes."""
    orders = Orders(tmp_path)
    source = orders.source(max_files_per_epoch=1, skip_changes=skip_changes)
    enumerator = source.create_enumerator(None)
    if not first:
        orders.add(1, 1)
        assert take(source, enumerator) == [1]
    orders.add(2, 2, 3)
    assert take(source, enumerator) == [2]
    orders.add(3, 4)
    orders.expire(1 if first else 2)
    with pytest.raises(InputChangedError, match=r"which was not read to its end, is no longer .* has expired"):
        take(source, restored(source, enumerator))
