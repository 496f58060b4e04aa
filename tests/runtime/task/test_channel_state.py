"""In-flight records go to the subtasks that have their keys, or their turn, at another parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind, StreamPartitioner
from dagster_flinkpy.key_groups import compute_operator_index_for_key_group
from dagster_flinkpy.key_hashes import assign_to_key_group
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import TaskOutput, decode_buffer, rows_of
from dagster_flinkpy.runtime.task.channel_state import InFlightRow, own_records

MAX_PARALLELISM = 16
KEYED = StreamPartitioner(PartitionerKind.HASH, lambda n: n, Types.LONG())
CUSTOM = StreamPartitioner(PartitionerKind.CUSTOM, lambda n: n, custom=lambda key, width: key % width)
OTHERS = [
    StreamPartitioner(kind)
    for kind in PartitionerKind
    if kind not in (PartitionerKind.HASH, PartitionerKind.CUSTOM, PartitionerKind.BROADCAST)
]
widths = st.integers(1, 5)


def sent(partitioner: StreamPartitioner, numbers: list[int], width: int) -> list[InFlightRow]:
    """Returns the buffers that a record writer sends, each as it is in flight to a subtask."""
    edge = JobEdge(0, "before", "behind", 0, partitioner, Types.LONG())
    output = TaskOutput()
    writer = RecordWriter(edge, 0, width, MAX_PARALLELISM, output)
    if numbers:
        writer.emit(StreamBatch(Types.LONG(), np.arange(len(numbers)), values=numbers))
    writer.flush()
    found = [row for batch in output.drain() for row in rows_of(batch)]
    return [InFlightRow(edge, 0, row.kind, row.payload, [(row.target, width)]) for row in found]


def taken(rows: list[InFlightRow], width: int) -> dict[int, list[int]]:
    """Returns the records that each subtask takes."""
    found: dict[int, list[int]] = {}
    for subtask in range(width):
        payloads = [own_records(row, subtask, width, MAX_PARALLELISM) for row in rows]
        batches = [
            decode_buffer(payload, row.edge.type_info) for payload, row in zip(payloads, rows, strict=True) if payload
        ]
        found[subtask] = [number for batch in batches for number in batch.values]
    return found


def again(rows: list[InFlightRow], width: int) -> list[InFlightRow]:
    """Returns the rows as they are given to each subtask of a later restore, if those before have read nothing."""
    return [replace(row, rescaled=[*row.rescaled, (subtask, width)]) for subtask in range(width) for row in rows]


@pytest.mark.parametrize("partitioner", [KEYED, CUSTOM, *OTHERS], ids=lambda each: each.kind.name)
@given(st.lists(st.integers(0, 99), unique=True), widths, widths, widths)
def test_each_record_is_taken_once(
    partitioner: StreamPartitioner, numbers: list[int], before: int, width: int, later: int
) -> None:
    rows = sent(partitioner, numbers, before)
    found = taken(rows, width)
    assert sorted(n for each in found.values() for n in each) == sorted(numbers)
    twice = taken(again(rows, width), later)
    assert sorted(n for each in twice.values() for n in each) == sorted(numbers)


@given(st.lists(st.integers(0, 99)), widths, widths)
def test_a_keyed_record_is_taken_by_the_subtask_that_has_its_key_group(
    numbers: list[int], before: int, width: int
) -> None:
    for subtask, own in taken(sent(KEYED, numbers, before), width).items():
        for number in own:
            group = assign_to_key_group(number, MAX_PARALLELISM)
            assert compute_operator_index_for_key_group(MAX_PARALLELISM, width, group) == subtask


@given(st.lists(st.integers(0, 99), unique=True), widths, widths)
def test_a_partitioner_of_the_user_chooses_again(numbers: list[int], before: int, width: int) -> None:
    for subtask, own in taken(sent(CUSTOM, numbers, before), width).items():
        assert {number % width for number in own} <= {subtask}


@given(st.lists(st.integers(0, 99), min_size=1), widths, widths)
def test_of_a_broadcast_each_subtask_takes_what_one_of_them_has_had(
    numbers: list[int], before: int, width: int
) -> None:
    rows = sent(StreamPartitioner(PartitionerKind.BROADCAST), numbers, before)
    assert taken(rows, width) == dict.fromkeys(range(width), numbers)


def test_records_of_the_same_parallelism_are_passed_on_as_they_are() -> None:
    (row,) = sent(KEYED, [1], 1)
    assert own_records(replace(row, rescaled=()), 3, 4, MAX_PARALLELISM) is row.payload


def test_a_key_that_is_no_number_is_the_same_key() -> None:
    keyed = StreamPartitioner(PartitionerKind.HASH, lambda n: float("nan"), Types.DOUBLE())
    assert taken(sent(keyed, [1, 2], 1), 1) == {0: [1, 2]}
