"""Python runs this as it starts: code servers of Dagster fork the processes of runs and steps, which they would spawn.

Each would import for two seconds. They are forked from a process that has only imported, and has no threads.
"""

import sys

_WORDS = " ".join(sys.orig_argv)

if "dagster api grpc" in _WORDS or "multiprocessing.forkserver" in _WORDS:
    from multiprocessing import context, forkserver

    context._concrete_contexts["spawn"] = context._concrete_contexts["forkserver"]  # type: ignore[attr-defined]
    forkserver.set_forkserver_preload(
        [
            "dagster_flinkpy.orchestration",
            "dagster_flinkpy.runtime.master.job",
            "pyspark.sql.connect.session",
            "tests.e2e.storage",
        ]
    )
