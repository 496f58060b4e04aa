"""The functions of the Nexmark queries that keep state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream import (
    BatchState,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputBatchFunction,
    KeyedProcessFunction,
    ProcessAllWindowFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor

WINDOW = 10_000
"""Milliseconds of the windows of queries 7 and 8."""
TOP = 10
RANKS = 3


class Sellers(KeyedCoProcessFunction):
    """Query 3: each auction with its seller, whichever comes first."""

    def open(self, runtime_context: RuntimeContext) -> None:
        who = Types.TUPLE([Types.STRING(), Types.STRING(), Types.STRING()])
        self._person = runtime_context.get_state(ValueStateDescriptor("person", who))
        self._auctions = runtime_context.get_list_state(ListStateDescriptor("auctions", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        self._person.update((value.name, value.city, value.state))
        for auction in self._auctions:
            yield Row(value.name, value.city, value.state, auction)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        self._auctions.add(value.id)
        person = self._person.value()
        if person is not None:
            yield Row(*person, value.id)


class NewSellers(KeyedCoProcessFunction):
    """Query 8: people who have come and opened an auction in the same window. Keyed by who and when it starts."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))
        self._sold = runtime_context.get_state(ValueStateDescriptor("sold", Types.BOOLEAN()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        if self._sold.value():
            self._sold.clear()
            yield Row(value.id, value.name, value.window_start)
        else:
            self._name.update(value.name)
            ctx.timer_service().register_event_time_timer(value.window_start + WINDOW - 1)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        name = self._name.value()
        if name is not None:
            self._name.clear()
            yield Row(value.seller, name, value.window_start)
        else:
            self._sold.update(True)
            ctx.timer_service().register_event_time_timer(value.window_start + WINDOW - 1)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> None:
        self._name.clear()
        self._sold.clear()


class MostBids(ProcessAllWindowFunction):
    """Query 5: of the counts of one window, the greatest."""

    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Row]:
        counts = list(elements)
        most = max(each.count for each in counts)
        for each in counts:
            if each.count == most:
                yield Row(each.auction, most, each.window_end)


class HighestBids(KeyedProcessFunction):
    """Query 7: the bids of a window with the highest price. A bid at the end of the window may have it, too."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._bids = runtime_context.get_list_state(ListStateDescriptor("bids", CANDIDATE))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._bids.add(value)
        ctx.timer_service().register_event_time_timer(value.window_end)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        bids = list(self._bids)
        self._bids.clear()
        highest = max((each.price for each in bids if each.date_time < timestamp), default=None)
        for each in bids:
            if each.price == highest:
                yield Row(each.auction, each.bidder, each.price, each.date_time, each.extra)


CANDIDATE = Types.ROW_NAMED(
    ["window_end", "auction", "bidder", "price", "date_time", "extra"], [*[Types.LONG()] * 5, Types.STRING()]
)


def highest_of_batch(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Returns which bids may have the highest price of their window, as far as a batch knows."""
    time, price = batch["date_time"].to_numpy(), batch["price"].to_numpy()
    return _greatest(time // WINDOW, price) | (time % WINDOW == 0)


def most_of_batch(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Returns which counts may be the greatest of their window, as far as a batch knows."""
    return _greatest(batch["window_end"].to_numpy(), batch["count"].to_numpy())


def _greatest(groups: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    distinct, group = np.unique(groups, return_inverse=True)
    greatest = np.full(len(distinct), np.iinfo(np.int64).min)
    np.maximum.at(greatest, group, values)
    return values == greatest[group]


def windows_of(bid: Any) -> Iterator[Row]:
    """Yields a bid for its window, and one at the end of the window before it for that one, too."""
    start = bid.date_time - bid.date_time % WINDOW
    for end in (start + WINDOW, start)[: 2 if bid.date_time == start else 1]:
        yield Row(end, bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)


class _OfAuctions(KeyedMultipleInputBatchFunction):
    """Bids with their auctions, in columns. A bid waits if its auction is not known yet.

    Args:
        auction_type: The fields of an auction that are kept.
        bid_type: The fields of a bid.
    """

    def __init__(self, auction_type: RowTypeInfo, bid_type: RowTypeInfo) -> None:
        self._auction = ValueStateDescriptor("auction", auction_type)
        self._waiting = ValueStateDescriptor("waiting", Types.LIST(bid_type))

    def get_inputs(self) -> Sequence[Any]:
        return [self.auctions, self.bids]

    def auctions(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> Iterable[pa.Table]:
        auctions = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
        state.update(self._auction, keys, auctions)
        waiting = state.lookup(self._waiting, keys)
        if waiting.null_count == len(waiting):
            return []
        found = pc.list_parent_indices(waiting)
        state.delete(self._waiting, keys.filter(waiting.is_valid()))
        return self._known(keys.take(found), waiting.flatten(), auctions.take(found), state)

    def bids(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> Iterable[pa.Table]:
        auctions = state.lookup(self._auction, keys)
        bids = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
        if auctions.null_count:
            known = auctions.is_valid()
            self._wait(keys.filter(pc.invert(known)), bids.filter(pc.invert(known)), state)
            keys, bids, auctions = keys.filter(known), bids.filter(known), auctions.filter(known)
        return self._known(keys, bids, auctions, state) if len(keys) else []

    def _wait(self, keys: pa.Array, bids: pa.StructArray, state: BatchState) -> None:
        distinct, offsets, order = _grouped(keys)
        before = state.lookup(self._waiting, distinct)
        parents = pc.list_parent_indices(before).to_numpy()
        both = pa.concat_arrays([before.flatten(), bids.take(pa.array(order))])
        parents = np.concatenate([parents, np.repeat(np.arange(len(distinct)), np.diff(offsets))])
        state.update(self._waiting, distinct, _lists(parents, both, len(distinct)))

    @abstractmethod
    def _known(
        self, keys: pa.Array, bids: pa.StructArray, auctions: pa.StructArray, state: BatchState
    ) -> Iterable[pa.Table]:
        """Processes bids with their auctions. Keys may repeat."""


class WinningPrices(_OfAuctions):
    """Query 4: how the highest price of an auction changes: what to add to sum and count of its category."""

    _best = ValueStateDescriptor("best", Types.LONG())

    def _known(
        self, keys: pa.Array, bids: pa.StructArray, auctions: pa.StructArray, state: BatchState
    ) -> Iterable[pa.Table]:
        rows = pa.table({"key": keys, "price": bids.field("price"), "category": auctions.field("category")})
        rows = rows.filter(_in_time(bids, auctions))
        best = rows.group_by("key").aggregate([("price", "max"), ("category", "max")]).combine_chunks()
        keys, price = _column(best, "key"), _column(best, "price_max")
        before = state.lookup(self._best, keys)
        better = pc.fill_null(pc.greater(price, before), True)
        state.update(self._best, keys.filter(better), price.filter(better))
        changed = pa.table(
            {
                "category": _column(best, "category_max"),
                "total": pc.subtract(price, pc.fill_null(before, 0)),
                "auctions": before.is_null().cast(pa.int64()),
            }
        )
        yield changed.filter(better)


class MeanPrices(KeyedBatchFunction):
    """Query 4: the mean price of a category, without fractions as in SQL."""

    _sums = ValueStateDescriptor("sums", Types.ROW_NAMED(["total", "auctions"], [Types.LONG()] * 2))

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> pa.Table:
        sums = pa.table(batch).group_by("category").aggregate([("total", "sum"), ("auctions", "sum")])
        category = _column(sums, "category")
        before = state.lookup(self._sums, category).flatten()
        total = pc.add(_column(sums, "total_sum"), pc.fill_null(before[0], 0))
        auctions = pc.add(_column(sums, "auctions_sum"), pc.fill_null(before[1], 0))
        state.update(self._sums, category, pa.StructArray.from_arrays([total, auctions], ["total", "auctions"]))
        return pa.table({"category": category, "final": pc.divide(total, auctions)})


class WinningBids(_OfAuctions):
    """Query 9: the winning bid of each auction so far: of the highest price, and of those the first."""

    _best = ValueStateDescriptor("best", Types.ROW_NAMED(["price", "date_time"], [Types.LONG()] * 2))

    def _known(
        self, keys: pa.Array, bids: pa.StructArray, auctions: pa.StructArray, state: BatchState
    ) -> Iterable[pa.Table]:
        price, time = bids.field("price"), bids.field("date_time")
        rows = pa.table({"key": keys, "price": price, "date_time": time, "row": np.arange(len(keys))})
        rows = rows.filter(_in_time(bids, auctions)).sort_by([("price", "descending"), ("date_time", "ascending")])
        best = rows.group_by("key", use_threads=False).aggregate([(n, "first") for n in ("price", "date_time", "row")])
        keys, price, time = (_column(best, name) for name in ("key", "price_first", "date_time_first"))
        before_price, before_time = state.lookup(self._best, keys).flatten()
        sooner = pc.and_(pc.equal(price, before_price), pc.less(time, before_time))
        better = pc.fill_null(pc.or_(pc.greater(price, before_price), sooner), True)
        found = pa.StructArray.from_arrays([price, time], ["price", "date_time"])
        state.update(self._best, keys.filter(better), found.filter(better))
        chosen = _column(best, "row_first").filter(better)
        bid, auction = bids.take(chosen), auctions.take(chosen)
        columns = {name: auction.field(name) for name in auction.type.names}
        columns |= {name: bid.field(name) for name in ("auction", "bidder", "price")}
        yield pa.table({**columns, "bid_date_time": bid.field("date_time"), "bid_extra": bid.field("extra")})


class BidsOfCategory(_OfAuctions):
    """Query 20: bids with the auction, for auctions of one category."""

    _category = 10

    def _known(
        self, keys: pa.Array, bids: pa.StructArray, auctions: pa.StructArray, state: BatchState
    ) -> Iterable[pa.Table]:
        wanted = pc.equal(auctions.field("category"), self._category)
        bids, auctions = bids.filter(wanted), auctions.filter(wanted)
        both = ("date_time", "extra")
        columns = {f"bid_{n}" if n in both else n: bids.field(n) for n in bids.type.names}
        columns |= {f"auction_{n}" if n in both else n: auctions.field(n) for n in auctions.type.names if n != "id"}
        yield pa.table(columns)


def _in_time(bids: pa.StructArray, auctions: pa.StructArray) -> pa.BooleanArray:
    time = bids.field("date_time")
    begun = pc.greater_equal(time, auctions.field("date_time"))
    return pc.and_(begun, pc.less_equal(time, auctions.field("expires")))


class FirstSeen(KeyedBatchFunction):
    """Queries 15 and 16: what the bids of a batch add to the counts of a group; of distinct ones, the new ones.

    Args:
        group: The fields of the group; the stream is keyed by these and by what is counted.
        counted: The field whose distinct values are counted.
        bids: Whether the bids are counted, too.
    """

    _seen = ValueStateDescriptor("ranks", Types.LONG())

    def __init__(self, group: Sequence[str], counted: str, *, bids: bool) -> None:
        self._group, self._counted, self._bids = list(group), counted, bids

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> pa.Table:
        rank = batch["rank"].to_numpy()
        ranks = {f"r{i}": (rank == i).astype(np.int64) for i in range(RANKS)}
        rows = pa.table({n: batch[n] for n in [*self._group, self._counted]} | ranks | {"row": np.arange(len(rank))})
        found = rows.group_by([*self._group, self._counted]).aggregate([*((r, "max") for r in ranks), ("row", "max")])
        bits = sum(_column(found, f"r{i}_max").to_numpy() << i for i in range(RANKS))
        distinct = keys.take(_column(found, "row_max"))
        before = state.lookup(self._seen, distinct)
        old = pc.fill_null(before, 0).to_numpy()
        state.update(self._seen, distinct, pa.array(old | bits))
        new = {"all": before.is_null().cast(pa.int64())} | {
            f"rank{i + 1}": ((bits & ~old) >> i & 1).astype(np.int64) for i in range(RANKS)
        }
        plural = f"{self._counted}s"
        sums = pa.table({n: found[n] for n in self._group} | {f"{r}_{plural}": v for r, v in new.items()})
        added = _summed(sums, self._group)
        if self._bids:
            bids = {f"rank{i + 1}_bids": ranks[f"r{i}"] for i in range(RANKS)}
            bids["all_bids"] = np.ones(len(rank), np.int64)
            counts = pa.table({n: batch[n] for n in [*self._group, "minute"]} | bids)
            added = added.join(_summed(counts, self._group, latest="minute"), self._group)
        empty = pa.nulls(len(added), pa.int64())
        counts = {n: added[n] if n in added.column_names else empty for n in COUNTS}
        return pa.table({n: added[n] for n in self._group} | counts)


COUNTS = (
    "minute",
    *(f"{r}_{what}" for what in ("bids", "bidders", "auctions") for r in ("all", "rank1", "rank2", "rank3")),
)
"""What is counted of a group, and the latest minute of a bid."""


class Counts(KeyedBatchFunction):
    """Queries 15 and 16: the counts of each group.

    Args:
        group: The fields of the group, by which the stream is keyed.
    """

    _counts = ValueStateDescriptor("counts", Types.ROW_NAMED(list(COUNTS), [Types.LONG()] * len(COUNTS)))

    def __init__(self, group: Sequence[str]) -> None:
        self._group = list(group)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> pa.Table:
        rows = pa.table(batch).append_column("row", pa.array(np.arange(len(batch))))
        sums = [(n, "sum") for n in COUNTS[1:]]
        added = rows.group_by(self._group).aggregate([*sums, ("minute", "max"), ("row", "max")])
        distinct = keys.take(_column(added, "row_max"))
        before = dict(zip(COUNTS, state.lookup(self._counts, distinct).flatten(), strict=True))
        minute = pc.max_element_wise(before["minute"], _column(added, "minute_max"))
        columns = {"minute": minute} | {
            n: pc.add(pc.fill_null(before[n], 0), pc.fill_null(_column(added, f"{n}_sum"), 0)) for n in COUNTS[1:]
        }
        state.update(self._counts, distinct, pa.StructArray.from_arrays(list(columns.values()), list(columns)))
        return pa.table({n: added[n] for n in self._group} | columns)


class LastBids(KeyedBatchFunction):
    """Query 18: the last bid of a bidder on an auction. Of those at one time, the one that came last."""

    _last = ValueStateDescriptor("last", Types.LONG())

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> pa.Table:
        order = pc.sort_indices(batch["date_time"])  # a stable sort
        rows = pa.table({n: batch[n] for n in ("bidder", "auction")} | {"row": np.arange(len(batch))})
        found = rows.take(order).group_by(["bidder", "auction"], use_threads=False).aggregate([("row", "last")])
        last = _column(found, "row_last")
        distinct, time = keys.take(last), batch["date_time"].take(last)
        before = state.lookup(self._last, distinct)
        newer = pc.fill_null(pc.greater_equal(time, before), True)
        state.update(self._last, distinct, pc.max_element_wise(time, before))
        return pa.table(batch.take(last.filter(newer)))


class TopBids(KeyedBatchFunction):
    """Query 19: the ten highest bids on an auction, of which the first of those with one price. Emits new ranks.

    Args:
        bid_type: The fields of a bid.
    """

    def __init__(self, bid_type: RowTypeInfo) -> None:
        self._top = ValueStateDescriptor("top", Types.LIST(bid_type))

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, state: BatchState) -> pa.Table | None:
        encoded = keys.dictionary_encode()
        distinct = encoded.dictionary
        before = state.lookup(self._top, distinct)
        new = pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)
        bids = pa.concat_arrays([before.flatten(), new])
        parents = np.concatenate([pc.list_parent_indices(before).to_numpy(), encoded.indices.to_numpy()])
        ranked = np.lexsort([-bids.field("price").to_numpy(), parents])  # stable: state and early bids first
        rank = _places(parents[ranked])
        old = len(bids) - len(new)
        old_rank = np.full(len(bids), -1)
        old_rank[:old] = _places(parents[:old])
        kept, rank = ranked[rank < TOP], rank[rank < TOP]
        changed = old_rank[kept] != rank
        if not changed.any():
            return None
        touched = np.unique(parents[kept][changed])
        lists = _lists(parents[kept], bids.take(pa.array(kept)), len(distinct))
        state.update(self._top, distinct.take(pa.array(touched)), lists.take(pa.array(touched)))
        emitted = bids.take(pa.array(kept[changed]))
        columns = {name: emitted.field(name) for name in emitted.type.names}
        return pa.table({**columns, "rank": rank[changed] + 1})


def _plus(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.add(pc.fill_null(one, 0), other)


def _column(table: pa.Table, name: str) -> pa.Array:
    return table[name].combine_chunks()


def _summed(rows: pa.Table, group: list[str], latest: str = "") -> pa.Table:
    names = [n for n in rows.column_names if n not in {*group, latest}]
    found = rows.group_by(group).aggregate([*((n, "sum") for n in names), *([(latest, "max")] if latest else [])])
    return found.rename_columns({f"{n}_sum": n for n in names} | ({f"{latest}_max": latest} if latest else {}))


def _grouped(keys: pa.Array) -> tuple[pa.Array, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the distinct keys, the offsets of their groups, and the rows in the order of groups."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))])
    return encoded.dictionary, offsets, order


def _places(groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the place of each row in its group, from 0. Rows are ordered by group."""
    rows = np.arange(len(groups))
    begins = np.concatenate([[True], groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, bool)
    return rows - np.maximum.accumulate(np.where(begins, rows, 0)) if len(groups) else rows


def _lists(parents: np.ndarray[Any, Any], values: pa.Array, number: int) -> pa.ListArray:
    """Returns as many lists, with the values of each parent, in order."""
    order = np.argsort(parents, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=number))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.take(pa.array(order)))
