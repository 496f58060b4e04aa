"""The columns of a state table: their names and types, and the order of the rows.

A table is sorted by key group, key hash (as an unsigned number), key, namespace, map key and time. Key group and hash
together are one 64-bit ``sort_key``, so that a key is found by binary search over one column of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    type_from_json,
)
from dagster_flinkpy.errors import CorruptStateError, UnsupportedKeyTypeError
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.columns import firsts_of
from dagster_flinkpy.state.handles import Json, RunHandle, StateKind, TableSnapshot
from dagster_flinkpy.state.index import distinct_words, has_words, integers_of, words_of

__all__ = [
    "APPEND",
    "APPEND_VERSION",
    "FORMAT_VERSION",
    "UNBOUND",
    "SortKeys",
    "TableLayout",
    "are_among",
    "check_key_like",
    "distinct_rows",
    "equal_rows",
    "expired_rows",
    "hashes_of",
    "in_key_groups",
    "key_groups_of",
    "make_sort_keys",
    "merge_runs",
    "sort_identities",
    "sort_order",
    "sorted_rows",
    "unplaced_rows",
]

FORMAT_VERSION = 1
"""The format version of the columns and the metadata of a run file."""
APPEND_VERSION = 2
"""The version with the column ``append``. A reader that ignores it would mistake added elements for the whole list."""
APPEND = "append"
"""Name of a column of some LIST runs. It is true for rows that only append their elements to those of older rows."""

SortKeys = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNBOUND = Types.BYTE()
"""Stands for the type of keys that is not known yet."""

_NEVER = (1 << 63) - 1
_FEW_RUNS = 64
"""Rows with fewer descents of their sort keys are sorted as runs to be merged."""


@dataclass(frozen=True)
class TableLayout:
    """The kind and the types of a table."""

    name: str
    kind: StateKind
    key_type: TypeInformation
    namespace_type: TypeInformation | None = None
    map_key_type: TypeInformation | None = None
    value_type: TypeInformation | None = None
    ttl: bool = False
    """Whether values expire."""

    @cached_property
    def identity(self) -> list[str]:
        """The columns that, together with the sort key, identify a row; in sort order."""
        optional = {"namespace": self.namespace_type, "map_key": self.map_key_type}
        return ["key", *(name for name, kind in optional.items() if kind), *(["time"] if self.kind == "TIMER" else [])]

    @cached_property
    def types(self) -> dict[str, TypeInformation]:
        """The types of the columns that a program declares."""
        types = {
            "key": self.key_type,
            "namespace": self.namespace_type,
            "map_key": self.map_key_type,
            "value": self.value_type,
        }
        return {name: kind for name, kind in types.items() if kind is not None}

    @cached_property
    def fields(self) -> list[pa.Field]:
        """The columns that both forms of a run share."""
        fields = [pa.field(name, kind.arrow_type) for name, kind in self.types.items()]
        if self.kind == "TIMER":
            fields.append(pa.field("time", pa.int64(), nullable=False))
        if self.ttl:
            fields.append(pa.field("expires_at", pa.list_(pa.int64()) if self.kind == "LIST" else pa.int64()))
        return [*fields, pa.field("deleted", pa.bool_(), nullable=False)]

    @cached_property
    def local_schema(self) -> pa.Schema:
        """The schema of a run in memory and in the local cache."""
        return pa.schema([pa.field("sort_key", pa.uint64(), nullable=False), *self.fields])

    @cached_property
    def append_schema(self) -> pa.Schema:
        """The local schema of a LIST run with the column ``append``."""
        return self.local_schema.append(pa.field(APPEND, pa.bool_(), nullable=False))

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The schema of a run in the store."""
        group = pa.field("key_group", pa.uint16(), nullable=False)
        return pa.schema([group, pa.field("key_hash", pa.int32(), nullable=False), *self.fields])

    def snapshot(self, runs: tuple[RunHandle, ...]) -> TableSnapshot:
        """Returns the table as part of a snapshot."""
        return TableSnapshot(
            name=self.name,
            kind=self.kind,
            key=self.key_type.to_json(),
            namespace=_to_json(self.namespace_type),
            map_key=_to_json(self.map_key_type),
            value=_to_json(self.value_type),
            runs=runs,
            ttl=self.ttl,
        )

    @staticmethod
    def of(table: TableSnapshot) -> TableLayout:
        """Returns the layout of a stored table."""
        return TableLayout(
            name=table.name,
            kind=table.kind,
            key_type=type_from_json(table.key),
            namespace_type=_from_json(table.namespace),
            map_key_type=_from_json(table.map_key),
            value_type=_from_json(table.value),
            ttl=table.ttl,
        )


def _to_json(kind: TypeInformation | None) -> Json | None:
    """Returns a type as JSON, or None for None."""
    return None if kind is None else kind.to_json()


def _from_json(raw: Json | None) -> TypeInformation | None:
    return None if raw is None else type_from_json(raw)


def check_key_like(kind: TypeInformation, what: str) -> None:
    """Checks that values of a type can identify rows, which means that they compare alike in Python and Arrow.

    Args:
        kind: The type of a key, namespace or map key.
        what: Names the value in the message.

    Raises:
        UnsupportedKeyTypeError: The type is a list, a map or pickled.
    """
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)):
        for name, field in zip(kind.field_names, kind.field_types, strict=True):
            check_key_like(field, f"{what}.{name}")
    elif not isinstance(kind, BasicTypeInfo):
        raise UnsupportedKeyTypeError(f"{what} is {kind!r}; use a basic type, or a tuple or Row of them")


# --- sort keys --------------------------------------------------------------------------------------------------------


def make_sort_keys(key_groups: npt.NDArray[np.uint16], hashes: npt.NDArray[np.int32]) -> SortKeys:
    """Returns sort keys: the key group in the upper half, and the hash as an unsigned number in the lower half."""
    sort_keys: SortKeys = key_groups.astype(np.uint64)
    sort_keys <<= np.uint64(32)  # In place: for a large run, fresh memory costs more than the arithmetic.
    sort_keys |= hashes.view(np.uint32)
    return sort_keys


def key_groups_of(sort_keys: SortKeys) -> npt.NDArray[np.uint16]:
    """Returns the key groups in sort keys."""
    return (sort_keys >> np.uint64(32)).astype(np.uint16)


def hashes_of(sort_keys: SortKeys) -> npt.NDArray[np.int32]:
    """Returns the key hashes in sort keys."""
    return (sort_keys & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)


# --- comparing rows ---------------------------------------------------------------------------------------------------


def _leaves(column: pa.Array[Any]) -> list[pa.Array[Any]]:
    """Returns flat columns that compare and sort like the column, with Java's equality of floating point numbers."""
    if pa.types.is_struct(column.type):
        struct: Any = column
        children = [leaf for child in struct.flatten() for leaf in _leaves(child)]
        return [struct.is_null(), *children]
    if pa.types.is_floating(column.type):
        # values: float64, bits, ordered: int64, one a row.
        # Like Double.compare: one NaN, above all numbers, and -0.0 below 0.0. Compares the bits as an ordered integer.
        values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
        bits = np.where(np.isnan(values), np.float64("nan"), values).view(np.int64)
        ordered = bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))
        return [pa.array(ordered, mask=column.is_null().to_numpy(zero_copy_only=False))]
    return [column]


def equal_rows(left: list[pa.Array[Any]], right: list[pa.Array[Any]]) -> Mask:
    """Returns where two sets of columns have equal rows. Null equals null, NaN equals NaN, -0.0 does not equal 0.0."""
    equal = np.ones(len(left[0]), dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(_leaves(a), _leaves(b), strict=True):
            same = pc.fill_null(pc.equal(x, y), False)
            if x.null_count and y.null_count:
                same = pc.or_(same, pc.and_(x.is_null(), y.is_null()))
            equal &= same.to_numpy(zero_copy_only=False)
    return equal


def are_among(
    sort_keys: SortKeys, identity: list[pa.Array[Any]], other_sort_keys: SortKeys, others: list[pa.Array[Any]]
) -> Mask:
    """Returns which rows have the identity of one of others. Values are equal as in :func:`equal_rows`.

    Both may have many rows of a key, so each is compared with its neighbours in sort order only.
    """
    # order: int64, a permutation of all rows, the others last. numbers: int64, which identity each of them has. found:
    # bool, by that number.
    both = [pa.concat_arrays(columns) for columns in zip(identity, others, strict=True)]
    order, starts = sort_identities(np.concatenate([sort_keys, other_sort_keys]), both)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(starts) - 1
    found = np.zeros(len(order), dtype=np.bool_)
    found[numbers[len(sort_keys) :]] = True
    among: Mask = found[numbers[: len(sort_keys)]]
    return among


def distinct_rows(column: pa.Array[Any]) -> tuple[Indices, Indices]:
    """Returns the first row of each distinct value, and for each row the number of its value among these.

    Values are equal as in :func:`equal_rows`.
    """
    # codes: int64, one a row. They are dense, and ascend by first occurrence.
    if has_words(column.type):
        words, long = words_of(column)
        if not len(long):
            return distinct_words(words, len(column))
    codes = np.zeros(len(column), dtype=np.int64)
    for i, leaf in enumerate(_leaves(column)):
        encoded = leaf.dictionary_encode(null_encoding="encode")
        if i and len(column):
            # Renumbered after each leaf, so that numbers stay small.
            encoded = pa.array(codes * len(encoded.dictionary) + encoded.indices.to_numpy()).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
    return firsts_of(codes), codes


def sort_order(sort_keys: SortKeys, identity: list[pa.Array[Any]]) -> Indices:
    """Returns the stable order of rows by sort key, then by the identity columns."""
    return sort_identities(sort_keys, identity)[0]


def sort_identities(sort_keys: SortKeys, identity: list[pa.Array[Any]]) -> tuple[Indices, Mask]:
    """Returns the order of :func:`sort_order`, and which rows, in it, have another identity than the one before."""
    # order: int64, a permutation. ordered: uint64, ascending. starts: bool, by place in order.
    is_merge = np.count_nonzero(sort_keys[1:] < sort_keys[:-1]) < _FEW_RUNS
    order = np.argsort(sort_keys, kind="stable" if is_merge else None)  # Each is several times faster on its rows.
    ordered = sort_keys[order]
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = ordered[1:] != ordered[:-1]
    for leaf in (leaf for column in identity for leaf in _leaves(column)):
        _divide(order, starts, leaf)
    if not is_merge:
        _divide(order, starts.copy(), pa.array(np.arange(len(order))))  # Rows of one identity keep their order.
    return order, starts


def _divide(order: Indices, starts: Mask, leaf: pa.Array[Any]) -> None:
    """Sorts the rows of each group by a column, and divides the group where the column has another value.

    Few columns tell rows of one group apart, so most only have to be compared.

    Args:
        order: The rows, group by group; sorted in place.
        starts: Which of them, in order, begin a group; changed in place.
        leaf: The column, not in order.
    """
    # tied, starts: bool, by place in order. places: int64, ascending: where a group has several rows. rows, begins,
    # groups, numbers: one a place. differs: bool, one a place but the first. mixed: bool, by group.
    if pa.types.is_boolean(leaf.type) and not leaf.true_count and not leaf.null_count:
        return
    tied = ~starts
    tied[:-1] |= ~starts[1:]
    places = np.flatnonzero(tied)
    rows, begins = order[places], starts[places]
    values = leaf.take(pa.array(rows))
    differs = _differ(values) & ~begins[1:]
    if not differs.any():
        return
    groups = np.cumsum(begins) - 1
    mixed = np.zeros(int(groups[-1]) + 1, dtype=np.bool_)
    mixed[groups[1:][differs]] = True
    if not mixed.all():
        some = mixed[groups]
        places, rows, begins, groups = places[some], rows[some], begins[some], groups[some]
        values = values.filter(pa.array(some))
    numbers = _ranks(values, int(groups[-1]) + 1)
    if ((numbers[1:] < numbers[:-1]) & ~begins[1:]).any():
        by = np.argsort(groups * (int(numbers.max()) + 1) + numbers, kind="stable")
        order[places], numbers = rows[by], numbers[by]
    begins[1:] |= numbers[1:] != numbers[:-1]
    starts[places] = begins


def _differ(leaf: pa.Array[Any]) -> Mask:
    """Returns which rows but the first have another value than the one before. Null equals null."""
    before, now = leaf[:-1], leaf[1:]
    differ = pc.not_equal(before, now)
    if leaf.null_count:
        differ = pc.or_(pc.fill_null(differ, False), pc.xor(before.is_null(), now.is_null()))
    mask: Mask = differ.to_numpy(zero_copy_only=False)
    return mask


def _ranks(leaf: pa.Array[Any], groups: int) -> Indices:
    """Returns integers from 0 that order values like the column, nulls last, and leave room for a number of groups."""
    kind, is_a = leaf.type, pa.types
    if not leaf.null_count and (is_a.is_integer(kind) or is_a.is_boolean(kind) or is_a.is_temporal(kind)):
        numbers = integers_of(leaf)
        least, most = int(numbers.min()), int(numbers.max())
        if (most - least + 1) * groups < 1 << 63:
            return numbers - least
    ranks: Indices = pc.rank(leaf, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def sorted_rows(layout: TableLayout, table: pa.Table) -> pa.Table:
    """Returns the rows of a table in sort order."""
    sort_keys = table.column("sort_key").to_numpy()
    if (sort_keys[1:] > sort_keys[:-1]).all():
        return table
    columns = [one_chunk(table.column(name)) for name in layout.identity]
    return table.take(pa.array(sort_order(sort_keys, columns)))


def expired_rows(table: pa.Table, now: int) -> Mask:
    """Returns which rows have expired. A list has expired if all of its elements have.

    Args:
        table: Rows of state with a time to live.
        now: The current time in milliseconds.
    """
    # lengths: int64, one a list. starts: where each list begins that is not empty. expires: int64, one a row.
    column = one_chunk(table.column("expires_at"))
    if pa.types.is_list(column.type):
        lists: Any = column
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        expires = np.full(len(lists), _NEVER, dtype=np.int64)
        filled = lengths > 0
        if filled.any():
            starts = (np.cumsum(lengths) - lengths)[filled]
            expires[filled] = np.maximum.reduceat(lists.flatten().to_numpy(), starts)
    else:
        expires = pc.fill_null(column, _NEVER).to_numpy()
    return expires <= now


def merge_runs(
    layout: TableLayout, newest_first: list[pa.Table], *, drop_deleted: bool, now: int | None = None
) -> pa.Table:
    """Merges tables into a sorted one. The newest row of an identity wins; lists get the elements added later.

    Args:
        layout: The layout of all tables.
        newest_first: Tables with ``local_schema`` or ``append_schema``, or the same columns of each. No two rows of a
            table have the same identity. They may be in any order.
        drop_deleted: Whether to leave out tombstones. Only correct if no older run can have the rows that they hide.
        now: If given, rows that have expired by this time, in milliseconds, are left out as well.
    """
    # order: int64, rows by sort key and identity, the newest of an identity first. kept: bool, by place in order.
    appends = any(APPEND in table.column_names for table in newest_first)
    if appends:
        newest_first = [_with_appends(table) for table in newest_first]
    table = pa.concat_tables(newest_first).combine_chunks()
    if not len(table):
        return table.drop_columns(APPEND) if appends else table
    columns = {name: one_chunk(table.column(name)) for name in ("sort_key", "deleted", *layout.identity)}
    sort_keys = columns["sort_key"].to_numpy()
    identity = [columns[name] for name in layout.identity]
    order, kept = sort_identities(sort_keys, identity)
    if appends:
        table = _join_lists(table.take(pa.array(order)), np.flatnonzero(kept), keep_appends=not drop_deleted)
        order = np.arange(len(table))
        kept = np.ones(len(table), dtype=np.bool_)
        columns["deleted"] = one_chunk(table.column("deleted"))
    if drop_deleted:
        kept &= ~columns["deleted"].to_numpy(zero_copy_only=False)[order]
        if layout.ttl and now is not None:
            kept &= ~expired_rows(table, now)[order]
    return table.take(pa.array(order[kept])).combine_chunks()


def _with_appends(table: pa.Table) -> pa.Table:
    if APPEND in table.column_names:
        return table
    field = pa.field(APPEND, pa.bool_(), nullable=False)
    return table.append_column(field, pa.array(np.zeros(len(table), dtype=np.bool_)))


def _join_lists(table: pa.Table, first: Indices, *, keep_appends: bool) -> pa.Table:
    """Returns one row per identity: the newest, with the elements of its whole list.

    Args:
        table: The rows, sorted. The newest row of an identity comes first.
        first: The first row of each identity.
        keep_appends: Whether older rows may exist elsewhere. If so, a list without the row that begins it stays an
            append.
    """
    # begins, part: bool, begun: int64, one a row. first, counts, ends, lengths, appends: one an identity; first
    # ascends. rows: int64, those whose lists are joined, by identity.
    begins = ~one_chunk(table.column(APPEND)).to_numpy(zero_copy_only=False)
    begun = np.cumsum(begins) - begins  # The number of earlier rows that begin a list.
    counts = np.diff(np.append(first, len(table)))
    part = begun == np.repeat(begun[first], counts)  # No newer row of the identity begins the list.
    # The oldest rows come first, like the elements of a list.
    ends = first + counts
    rows = np.repeat(first + ends - 1, counts) - np.arange(len(table))
    rows = rows[part[rows]]
    lengths = np.add.reduceat(part.astype(np.int64), first)
    joined = table.take(pa.array(first))
    for name in ("value", "expires_at"):
        if name in table.column_names:
            column = _joined(one_chunk(table.column(name)).take(pa.array(rows)), lengths)
            joined = joined.set_column(joined.column_names.index(name), table.schema.field(name), column)
    appends = ~np.logical_or.reduceat(part & begins, first)
    if not keep_appends or not appends.any():
        return joined.drop_columns(APPEND)
    return joined.set_column(joined.column_names.index(APPEND), table.schema.field(APPEND), pa.array(appends))


def _joined(lists: Any, counts: Indices) -> pa.Array[Any]:
    """Joins consecutive lists, in groups with the given counts. A group is null if all its lists are null."""
    # counts, starts, ends: int64, one a group, ascending but for counts. sizes: one a list. offsets: int32, one more
    # than groups.
    ends = np.cumsum(counts)
    starts = ends - counts
    sizes = pc.fill_null(lists.value_lengths(), 0).to_numpy()
    missing = np.logical_and.reduceat(lists.is_null().to_numpy(zero_copy_only=False), starts)
    offsets = np.concatenate([[0], np.cumsum(sizes)])[np.append(starts, ends[-1])].astype(np.int32)
    mask = pa.array(missing) if missing.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten(), type=lists.type, mask=mask)


def unplaced_rows(layout: TableLayout, columns: dict[str, Any], hashes: npt.NDArray[np.int32]) -> pa.Table:
    """Builds rows with ``local_schema``, all in key group 0; :func:`in_key_groups` assigns their key groups.

    Args:
        layout: Layout of the table.
        columns: The columns that its fields name.
        hashes: The hashes of the keys.
    """
    columns = {
        **columns,
        "sort_key": pa.array(make_sort_keys(np.zeros(len(hashes), dtype=np.uint16), hashes)),
        "deleted": pa.array(np.zeros(len(hashes), dtype=np.bool_)),
    }
    return pa.table([columns[name] for name in layout.local_schema.names], schema=layout.local_schema)


def in_key_groups(layout: TableLayout, rows: pa.Table, max_parallelism: int) -> pa.Table:
    """Assigns rows to key groups and sorts them.

    Args:
        layout: Layout of the table.
        rows: Rows with ``local_schema``.
        max_parallelism: Number of key groups.

    Raises:
        CorruptStateError: An identity occurs more than once.
    """
    rows = rows.combine_chunks()
    hashes = hashes_of(rows.column("sort_key").to_numpy())
    sort_keys = make_sort_keys(key_groups_of_hashes(hashes, max_parallelism), hashes)
    placed = sorted_rows(layout, rows.set_column(0, layout.local_schema.field(0), pa.array(sort_keys)))
    identity = [one_chunk(placed.column(name)) for name in layout.identity]
    _, starts = sort_identities(placed.column("sort_key").to_numpy(), identity)
    if len(again := np.flatnonzero(~starts)):
        shown = {name: placed.column(name)[int(again[0])].as_py() for name in layout.identity}
        raise CorruptStateError(f"state {layout.name!r} has {shown} more than once")
    return placed
