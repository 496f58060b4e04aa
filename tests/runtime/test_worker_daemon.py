"""Python workers that Spark's daemon forks after its imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_flinkpy.spark.processes import PYTHON_DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys

    import numpy as np
    import psutil

    module = "dagster_flinkpy.runtime.master.deployments.region_job"  # nothing else of this program imports it
    imported = module in sys.modules
    for _ in batches:
        # Both use threads, which do not survive a fork.
        groups = pa.table({"a": np.arange(1 << 20) % 7}).group_by("a", use_threads=True).aggregate([("a", "count")])
        product = np.ones((512, 512)) @ np.ones((512, 512))
        yield pa.RecordBatch.from_pydict(
            {
                "daemon": [" ".join(psutil.Process().parent().cmdline())],
                "imported": [imported],
                "groups": [len(groups)],
                "product": [product.sum()],
            }
        )


def test_workers_have_all_imports_and_may_use_threads(spark: SparkSession) -> None:
    schema = "daemon string, imported boolean, groups long, product double"
    for _ in range(2):  # also in a worker that is used again
        rows = spark.range(0, 4, 1, 4).mapInArrow(_look, schema).collect()
        assert all(PYTHON_DAEMON in row.daemon for row in rows)
        assert {(row.imported, row.groups, row.product) for row in rows} == {(True, 7, 512.0**3)}
        assert len(rows) == 4


def _faults(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import resource

    import numpy as np

    for _ in batches:
        for _ in range(3):  # glibc has learnt after two rounds which sizes are usual
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            arrays = [np.ones(1 << 17) for _ in range(24)]
            del arrays
        yield pa.RecordBatch.from_pydict({"faults": [resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]})


def test_workers_use_the_memory_of_numpy_again(spark: SparkSession) -> None:
    faults = [row.faults for row in spark.range(0, 2, 1, 2).mapInArrow(_faults, "faults long").collect()]
    assert max(faults) < 1000, faults  # 24 MiB are 6144 pages
