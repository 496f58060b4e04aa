"""The Nexmark queries as programs of the DataStream API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark import functions
from benchmarks.nexmark.functions import COUNTS
from dagster_flinkpy.common import Configuration, Duration, Time, TypeInformation, Types, WatermarkStrategy
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import Aggregation, DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

LONG, STRING, DATE = Types.LONG(), Types.STRING(), Types.SQL_DATE()

FIELDS: dict[str, dict[str, TypeInformation]] = {
    "person": {
        "id": LONG,
        **dict.fromkeys(["name", "email_address", "credit_card", "city", "state"], STRING),
        "date_time": LONG,
        "extra": STRING,
    },
    "auction": {
        "id": LONG,
        **dict.fromkeys(["item_name", "description"], STRING),
        **dict.fromkeys(["initial_bid", "reserve", "date_time", "expires", "seller", "category"], LONG),
        "extra": STRING,
    },
    "bid": {
        **dict.fromkeys(["auction", "bidder", "price"], LONG),
        **dict.fromkeys(["channel", "url"], STRING),
        "date_time": LONG,
        "extra": STRING,
    },
}
"""The columns of the tables. Times are milliseconds since 1970."""

SHARE = {"person": 0.02, "auction": 0.06, "bid": 0.92}
"""The part of the events that is in each table."""

BATCH_ROWS = 65_536
"""Records that functions of columns get at a time: more than by default, because each call has a cost."""
OUT_OF_ORDER = 4
"""Seconds by which watermarks stay behind."""


@dataclass(frozen=True)
class Query:
    """A query."""

    reads: Mapping[str, list[str]]
    """The columns of each table that it reads."""
    build: Callable[..., DataStream]
    """Returns its result, from a stream for each table, in order."""
    key: tuple[str, ...] = ()
    """The fields of which each value has one result, that which came last. Without any, each record is a result."""
    ties: tuple[str, ...] = ()
    """Fields that the query does not determine if others are equal: which of several bids at one time is the last."""
    stateful: bool = True
    deterministic: bool = True


def row(**fields: TypeInformation) -> RowTypeInfo:
    """Returns the type of rows with these fields."""
    return Types.ROW_NAMED(list(fields), list(fields.values()))


def _fields(*names: str) -> dict[str, TypeInformation]:
    """Returns columns of bids."""
    return {name: FIELDS["bid"][name] for name in names}


def of(table: str, names: list[str]) -> RowTypeInfo:
    """Returns the type of rows with these columns of a table."""
    return row(**{name: FIELDS[table][name] for name in names})


BID, AUCTION = list(FIELDS["bid"]), list(FIELDS["auction"])


def build(
    name: str, env: StreamExecutionEnvironment, folder: Path, *, events_per_epoch: int | None = None
) -> DataStream:
    """Declares a query, and returns its result.

    Args:
        name: Name of the query, such as ``q5``.
        env: The environment.
        folder: Folder with the events.
        events_per_epoch: Number of events between two checkpoints. Default: there is one, at the end.
    """
    query = QUERIES[name]
    by_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(OUT_OF_ORDER))
    by_time = by_time.with_timestamp_assigner("date_time")
    streams = []
    for table, names in query.reads.items():
        most = None if events_per_epoch is None else max(round(events_per_epoch * SHARE[table]), 1)
        source = ParquetSource(
            str(folder / table), row_type=of(table, names), max_records_per_epoch=most, batch_rows=BATCH_ROWS
        )
        streams.append(env.from_source(source, by_time, table).uid(table))
    return query.build(*streams).uid(name)


def q0(bids: DataStream) -> DataStream:
    """Passes bids through."""
    return bids.filter_batch(lambda batch: np.ones(len(batch), dtype=bool))


def q1(bids: DataStream) -> DataStream:
    """Converts prices to euros."""
    euros = row(**_fields("auction", "bidder"), price=Types.DECIMAL(23, 3), **_fields("date_time", "extra"))
    return bids.map_batch(_euros, euros)


def _euros(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("price"), "price", _in_euros(batch["price"]))


def _in_euros(price: pa.Array) -> pa.Array:
    return pc.multiply(price.cast(pa.decimal128(19)), pa.scalar(Decimal("0.908"), pa.decimal128(3, 3)))


def q2(bids: DataStream) -> DataStream:
    """Selects bids on some auctions."""
    some = bids.filter_batch(lambda batch: batch["auction"].to_numpy() % 123 == 0)
    return some.map_batch(lambda batch: batch.select(["auction", "price"]), row(auction=LONG, price=LONG))


def q3(people: DataStream, auctions: DataStream) -> DataStream:
    """Who sells in some states, in a category."""
    states = pa.array(["OR", "ID", "CA"])
    near = people.filter_batch(lambda batch: pc.is_in(batch["state"], states))
    wanted = auctions.filter_batch(lambda batch: pc.equal(batch["category"], 10))
    both = near.connect(wanted).key_by("id", "seller")
    return both.process(functions.Sellers(), row(name=STRING, city=STRING, state=STRING, id=LONG))


def q4(auctions: DataStream, bids: DataStream) -> DataStream:
    """The mean of the winning prices of each category."""
    both = auctions.key_by("id").connect(bids.key_by("auction"))
    kept = functions.WinningPrices(auctions.get_type(), bids.get_type())
    changes = both.process_batch(kept, row(category=LONG, total=LONG, auctions=LONG)).uid("winning_prices")
    return changes.key_by("category").process_batch(functions.MeanPrices(), row(category=LONG, final=LONG))


def q5(bids: DataStream) -> DataStream:
    """The auctions with the most bids of the last ten seconds, every two seconds."""
    slide = Time.seconds(2)
    counts = bids.key_by("auction").window(SlidingEventTimeWindows.of(Time.seconds(10), slide)).count().uid("counts")
    most = counts.filter_batch(functions.most_of_batch).window_all(TumblingEventTimeWindows.of(slide))
    return most.process(functions.MostBids(), row(auction=LONG, num=LONG, window_end=LONG))


def q7(bids: DataStream) -> DataStream:
    """The highest bids of each ten seconds."""
    candidates = bids.filter_batch(functions.highest_of_batch).flat_map(functions.windows_of, functions.CANDIDATE)
    return candidates.key_by("window_end").process(functions.HighestBids(), bids.get_type())


def q8(people: DataStream, auctions: DataStream) -> DataStream:
    """New people who open auctions within the same ten seconds."""
    came = people.map_batch(_with_window, row(id=LONG, name=STRING, window_start=LONG))
    window = TumblingEventTimeWindows.of(Time.milliseconds(functions.WINDOW))
    sellers = auctions.key_by("seller").window(window).count().uid("sellers")
    both = came.key_by(("id", "window_start")).connect(sellers.key_by(("seller", "window_start")))
    return both.process(functions.NewSellers(), row(id=LONG, name=STRING, window_start=LONG))


def _with_window(batch: pa.RecordBatch) -> pa.Table:
    time = batch["date_time"].to_numpy()
    return pa.table({"id": batch["id"], "name": batch["name"], "window_start": time - time % functions.WINDOW})


def q9(auctions: DataStream, bids: DataStream) -> DataStream:
    """The winning bid of each auction."""
    both = auctions.key_by("id").connect(bids.key_by("auction"))
    bid = _fields("auction", "bidder", "price")
    result = row(**FIELDS["auction"], **bid, bid_date_time=LONG, bid_extra=STRING)
    return both.process_batch(functions.WinningBids(auctions.get_type(), bids.get_type()), result)


def q11(bids: DataStream) -> DataStream:
    """The number of bids of each session of a bidder."""
    return bids.key_by("bidder").window(EventTimeSessionWindows.with_gap(Time.seconds(10))).count()


def q12(bids: DataStream) -> DataStream:
    """The number of bids of each bidder within ten seconds of processing time."""
    return bids.key_by("bidder").window(TumblingProcessingTimeWindows.of(Time.seconds(10))).count()


def q14(bids: DataStream) -> DataStream:
    """Calculates time of day, price and letters of some bids."""
    result = row(
        **_fields("auction", "bidder"),
        price=Types.DECIMAL(23, 3),
        time_type=STRING,
        **_fields("date_time", "extra"),
        letters=LONG,
    )
    return bids.filter_batch(_is_dear).map_batch(_calculated, result)


def _is_dear(batch: pa.RecordBatch) -> pa.Array:
    euros = _in_euros(batch["price"])
    return pc.and_(pc.greater(euros, Decimal(1_000_000)), pc.less(euros, Decimal(50_000_000)))


def _calculated(batch: pa.RecordBatch) -> pa.Table:
    hour = batch["date_time"].to_numpy() // 3_600_000 % 24
    kinds = np.select([(hour >= 8) & (hour <= 18), (hour <= 6) | (hour >= 20)], [0, 1], 2)
    return pa.table(
        {
            **{name: batch[name] for name in ("auction", "bidder", "date_time", "extra")},
            "price": _in_euros(batch["price"]),
            "time_type": pa.array(["dayTime", "nightTime", "otherTime"]).take(pa.array(kinds)),
            "letters": pc.count_substring(batch["extra"], "c"),
        }
    )


def q15(bids: DataStream) -> DataStream:
    """Bids, bidders and auctions of each day, by price."""
    return _report(bids, {"day": DATE})


def q16(bids: DataStream) -> DataStream:
    """Bids, bidders and auctions of each channel and day, by price."""
    return _report(bids, {"channel": STRING, "day": DATE})


def _report(bids: DataStream, group: dict[str, TypeInformation]) -> DataStream:
    """Counts what is distinct by group and value first, because few groups would leave it to few subtasks."""
    ranked = _with_day_and_rank(bids)
    changes = row(**group, **dict.fromkeys(COUNTS, LONG))
    bidders, auctions = (
        ranked.key_by((*group, counted)).process_batch(functions.FirstSeen(list(group), counted, bids=bids), changes)
        for counted, bids in (("bidder", True), ("auction", False))
    )
    both = bidders.uid("bidders").union(auctions.uid("auctions"))
    key: Any = tuple(group) if len(group) > 1 else next(iter(group))
    return both.key_by(key).process_batch(functions.Counts(list(group)), changes)


def _with_day_and_rank(bids: DataStream) -> DataStream:
    kept = [name for name in bids.get_type().get_field_names() if name != "date_time"]
    return bids.map_batch(_ranked, row(**_fields(*kept), day=DATE, rank=LONG, minute=LONG))


def _ranked(batch: pa.RecordBatch) -> pa.Table:
    minutes = batch["date_time"].to_numpy() // 60_000
    price = batch["price"].to_numpy()
    columns = {name: batch[name] for name in batch.schema.names if name != "date_time"}
    columns |= {
        "day": pa.array((minutes // 1440).astype(np.int32), pa.date32()),
        "rank": (price >= 10_000).astype(np.int64) + (price >= 1_000_000),
        "minute": minutes % 1440,
    }
    return pa.table(columns)


def q17(bids: DataStream) -> DataStream:
    """Bids and prices of each auction and day."""
    bids.get_execution_environment().configure(_MINI_BATCHES)
    of_day = {
        "auction": LONG,
        "day": DATE,
        "price": LONG,
        **dict.fromkeys(("rank1", "rank2", "rank3"), Types.BOOLEAN()),
    }
    statistics = (
        bids.map_batch(_with_ranks, row(**of_day))
        .key_by(("auction", "day"))
        .agg(
            bids=Aggregation.count(),
            rank1=Aggregation.count("rank1"),
            rank2=Aggregation.count("rank2"),
            rank3=Aggregation.count("rank3"),
            least=Aggregation.min("price"),
            greatest=Aggregation.max("price"),
            total=Aggregation.sum("price"),
        )
    )
    numbers = [*statistics.get_type().get_field_names()[2:], "mean"]
    statistics = statistics.uid("statistics")
    return statistics.map_batch(_with_mean, row(auction=LONG, day=DATE, **dict.fromkeys(numbers, LONG)))


_MINI_BATCHES = Configuration().set_boolean("table.exec.mini-batch.enabled", True)


def _with_ranks(batch: pa.RecordBatch) -> pa.Table:
    price = batch["price"]
    cheap, dear = pc.less(price, 10_000), pc.greater_equal(price, 1_000_000)
    ranks = {"rank1": cheap, "rank2": pc.invert(pc.or_(cheap, dear)), "rank3": dear}
    days = (batch["date_time"].to_numpy() // 86_400_000).astype(np.int32)
    return pa.table({"auction": batch["auction"], "day": pa.array(days, pa.date32()), "price": price, **ranks})


def _with_mean(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("mean", pc.divide(batch["total"], batch["bids"]))


def q18(bids: DataStream) -> DataStream:
    """The last bid of each bidder on each auction."""
    return bids.key_by(("bidder", "auction")).process_batch(functions.LastBids(), bids.get_type())


def q19(bids: DataStream) -> DataStream:
    """The ten highest bids on each auction."""
    return bids.key_by("auction").process_batch(functions.TopBids(bids.get_type()), row(**FIELDS["bid"], rank=LONG))


def q20(auctions: DataStream, bids: DataStream) -> DataStream:
    """Bids on auctions of a category, with the auction."""
    both = ("date_time", "extra")
    fields = {f"bid_{n}" if n in both else n: kind for n, kind in FIELDS["bid"].items()}
    fields |= {f"auction_{n}" if n in both else n: kind for n, kind in FIELDS["auction"].items() if n != "id"}
    joined = auctions.key_by("id").connect(bids.key_by("auction"))
    return joined.process_batch(functions.BidsOfCategory(auctions.get_type(), bids.get_type()), row(**fields))


_CHANNEL_ID = r"(?:&|^)channel_id=(?P<channel_id>[^&]*)"


def q21(bids: DataStream) -> DataStream:
    """Adds the number of the channel."""
    known = bids.map_batch(_with_channel_id, row(**_fields("auction", "bidder", "price", "channel"), channel_id=STRING))
    return known.filter_batch(lambda batch: batch["channel_id"].is_valid())


def _with_channel_id(batch: pa.RecordBatch) -> pa.Table:
    known = pc.index_in(pc.utf8_lower(batch["channel"]), pa.array(["apple", "google", "facebook", "baidu"]))
    in_url = pc.struct_field(pc.extract_regex(batch["url"], _CHANNEL_ID), "channel_id")
    columns = {name: batch[name] for name in ("auction", "bidder", "price", "channel")}
    return pa.table({**columns, "channel_id": pc.coalesce(known.cast(pa.string()), in_url)})


def q22(bids: DataStream) -> DataStream:
    """Adds the folders of the page."""
    fields = _fields("auction", "bidder", "price", "channel")
    return bids.map_batch(_with_folders, row(**fields, dir1=STRING, dir2=STRING, dir3=STRING))


def _with_folders(batch: pa.RecordBatch) -> pa.Table:
    parts = pc.split_pattern(batch["url"], "/")
    columns = {name: batch[name] for name in ("auction", "bidder", "price", "channel")}
    return pa.table({**columns, **{f"dir{i}": pc.list_element(parts, 2 + i) for i in (1, 2, 3)}})


_PLAIN = ["auction", "bidder", "price", "date_time", "extra"]
_PAGES = ["auction", "bidder", "price", "channel", "url", "date_time"]

QUERIES: dict[str, Query] = {
    "q0": Query({"bid": _PLAIN}, q0, stateful=False),
    "q1": Query({"bid": _PLAIN}, q1, stateful=False),
    "q2": Query({"bid": ["auction", "price", "date_time"]}, q2, stateful=False),
    "q3": Query(
        {"person": ["id", "name", "city", "state", "date_time"], "auction": ["id", "seller", "category", "date_time"]},
        q3,
    ),
    "q4": Query(
        {"auction": ["id", "date_time", "expires", "category"], "bid": ["auction", "price", "date_time"]},
        q4,
        key=("category",),
    ),
    "q5": Query({"bid": ["auction", "date_time"]}, q5),
    "q7": Query({"bid": _PLAIN}, q7),
    "q8": Query({"person": ["id", "name", "date_time"], "auction": ["seller", "date_time"]}, q8),
    "q9": Query({"auction": AUCTION, "bid": _PLAIN}, q9, key=("id",), ties=("bidder", "bid_extra")),
    "q11": Query({"bid": ["bidder", "date_time"]}, q11),
    "q12": Query({"bid": ["bidder", "date_time"]}, q12, deterministic=False),
    "q14": Query({"bid": _PLAIN}, q14, stateful=False),
    "q15": Query({"bid": ["auction", "bidder", "price", "date_time"]}, q15, key=("day",)),
    "q16": Query({"bid": ["auction", "bidder", "price", "channel", "date_time"]}, q16, key=("channel", "day")),
    "q17": Query({"bid": ["auction", "price", "date_time"]}, q17, key=("auction", "day")),
    "q18": Query({"bid": BID}, q18, key=("bidder", "auction"), ties=("price", "channel", "url", "extra")),
    "q19": Query({"bid": BID}, q19, key=("auction", "rank"), ties=("bidder", "channel", "url", "date_time", "extra")),
    "q20": Query({"auction": AUCTION, "bid": BID}, q20),
    "q21": Query({"bid": _PAGES}, q21, stateful=False),
    "q22": Query({"bid": _PAGES}, q22, stateful=False),
}
