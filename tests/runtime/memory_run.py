"""Pipes an epoch of a given size (in MiB) through three stages, and prints the peak memory in MiB."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow, rows_of
from dagster_flinkpy.runtime.task.task import StageTask
from tests.runtime.harness import make_job
from tests.runtime.programs import environment

RECORD = Types.ROW_NAMED(["key", "payload"], [Types.LONG(), Types.STRING()])
BATCH = 512
KIB_PER_RECORD = 4


class Records(Source):
    """Records of 4 KiB, which are created when they are read."""

    def __init__(self, mib: int) -> None:
        self._batches = mib * 1024 // (KIB_PER_RECORD * BATCH)

    @property
    def produced_type(self) -> Any:
        return RECORD

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return CollectionSource([0], Types.LONG()).create_enumerator(restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        payload = pa.array(["x" * (KIB_PER_RECORD * 1024)] * BATCH)
        for i in range(self._batches):
            keys = pa.array([(i * BATCH + j) % 1000 for j in range(BATCH)], type=pa.int64())
            yield pa.StructArray.from_arrays([keys, payload], fields=list(RECORD.arrow_type)), (i + 1) * BATCH


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self._count.update((self._count.value() or 0) + 1)
        yield value


def main(mib: int, folder: Path) -> None:
    env = environment(1)
    records = env.from_source(Records(mib), WatermarkStrategy.no_watermarks(), "records").uid("records")
    copied = records.rebalance().map(lambda value: value, RECORD).uid("map")
    copied.key_by("key").process(Count(), RECORD).uid("count").global_().map(lambda value: value.key, Types.LONG())
    job = make_job(env.get_job_graph(), folder)
    assert job.graph.number_of_stages == 4
    rows: Iterable[WireRow] = ()
    for stage in range(job.graph.number_of_stages):
        rows = chain.from_iterable(map(rows_of, StageTask(job, stage, 0).run(rows)))
    acks = [row for row in rows if row.kind is Kind.ACK]
    assert len(acks) == len(job.graph.vertices)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
