"""The input of the stateful suite: made from a seed, and written once for all sides.

Every row is in one of :data:`PARTITIONS` files by its user, in the order of time, as a topic partitioned by the user
would have it. So the records of a key reach every engine in one order.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.stateful.rules import PARTITIONS

PRODUCTS = 1_000
CATEGORIES = 20
FEATURES = 20
PAYMENT_DELAY = 20_000
"""Most milliseconds between an order and its payment."""
_BURST, _ACTIVE = 5_000, 500
"""Every 5,000 events, other 500 users are active, so that there are sessions."""
_REPEATED = 0.1
_PAID = 0.3
_SEED = 17
_WRITTEN = 1_700_000_000


def tables(events: int, keys: int, step: int = 1) -> dict[str, pa.Table]:
    """Returns all tables, each in the order of its time.

    Args:
        events: Number of rows of ``events`` and of ``measurements``.
        keys: Number of users.
        step: Milliseconds between two events.
    """
    random = np.random.default_rng(_SEED)
    numbers = np.arange(events)
    users = (numbers // _BURST * 7_919 + random.integers(0, _ACTIVE, events)) % keys
    repeated = np.flatnonzero(random.random(events) < _REPEATED)
    ids = numbers.copy()
    before = repeated - random.integers(1, 50_000, len(repeated))
    ids[repeated[before >= 0]] = before[before >= 0]
    columns = {
        "id": ids,
        "user": users[ids],  # a repeated event has the user of the first one
        "product": random.integers(0, PRODUCTS, events),
        "amount": random.integers(1, 100_000, events),
        "time": numbers * step,
    }
    table = pa.table({name: pa.array(column) for name, column in columns.items()})

    paid = np.flatnonzero(random.random(events) < _PAID)
    payments = table.take(pa.array(paid)).select(["id", "user", "time"])
    times = payments["time"].to_numpy() + random.integers(0, PAYMENT_DELAY, len(paid))
    payments = payments.set_column(2, "time", pa.array(times)).sort_by([("time", "ascending"), ("id", "ascending")])

    products = np.arange(PRODUCTS)
    features = {f"f{i}": random.integers(0, 8_000, events) / 8 for i in range(FEATURES)}
    return {
        "events": table,
        "payments": payments,
        "products": pa.table({"product": products, "category": products % CATEGORIES, "rate": products % 7 + 1}),
        "measurements": pa.table({"user": random.integers(0, keys, events), "time": numbers * step, **features}),
    }


class Input:
    """The tables as files.

    Args:
        folder: Folder for the files, which is made.
        events: Number of events.
        keys: Number of users.
        per_slice: Number of events in a slice. The files of all slices are ``TABLE/NNNNN-P.parquet``, and those
            of each partition as a whole ``csv/TABLE/P.csv``, without a header.
        step: Milliseconds between two events.
        new: Whether to write the files. Default: True.
        csv_too: Whether to write them as CSV files, too, which some peers read. Default: True.
    """

    def __init__(
        self,
        folder: Path,
        events: int,
        keys: int,
        per_slice: int,
        *,
        step: int = 1,
        new: bool = True,
        csv_too: bool = True,
    ) -> None:
        self.folder, self.end, self._millis = folder, (events - 1) * step, per_slice * step
        self.slices = -(-events // per_slice)
        if not new:
            return
        for name, table in tables(events, keys, step).items():
            (folder / name).mkdir(parents=True)
            for i in range(1 if name == "products" else self.slices):
                rows = table if name == "products" else self._slice(table, i)
                for part, partition in enumerate(_partitions(rows)):
                    file = folder / name / f"{i:05}-{part}.parquet"
                    pq.write_table(partition, file)
                    os.utime(file, (_WRITTEN + i, _WRITTEN + i))  # Spark reads files in the order of their age
            if not csv_too:
                continue
            (folder / "csv" / name).mkdir(parents=True)
            for part, partition in enumerate(_partitions(table)):
                csv.write_csv(partition, folder / "csv" / name / f"{part}.csv", csv.WriteOptions(include_header=False))

    def _slice(self, table: pa.Table, number: int) -> pa.Table:
        """Returns the rows of a slice. The last one has the payments that come after the last event, too."""
        start, last = number * self._millis, number == self.slices - 1
        wanted = pc.greater_equal(table["time"], start)
        if not last:
            wanted = pc.and_(wanted, pc.less(table["time"], start + self._millis))
        return table.filter(wanted)

    def location(self, table: str) -> str:
        """Returns the folder of a table."""
        return str(self.folder / table)

    def rows(self, *tables: str) -> int:
        """Returns the number of rows of some tables."""
        return sum(pq.read_metadata(file).num_rows for name in tables for file in (self.folder / name).iterdir())


def _partitions(table: pa.Table) -> list[pa.Table]:
    if "user" not in table.column_names:
        return [table]
    parts = pc.bit_wise_and(table["user"], PARTITIONS - 1)
    return [table.filter(pc.equal(parts, part)) for part in range(PARTITIONS)]
