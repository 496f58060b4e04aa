"""What keyed state costs as it grows, and how fast it is compared with other engines.

Our side consists of jobs on a warm Spark session with checkpoints in a local directory. ``docs/performance.md``
explains each line.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import sampling
from benchmarks import state_programs as programs
from benchmarks.peers import flink
from benchmarks.peers import spark as spark_peer
from benchmarks.report import line
from benchmarks.state_cost import PARALLELISM, RESCALED, TOUCHED, Growth, StateJob, timed
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

SIZES = (100_000, 1_000_000, 10_000_000)
WARM_UP_ROUNDS, TOUCH_ROUNDS, RESTORE_ROUNDS, RATE_ROUNDS = 10, 11, 5, 3
EVENTS, PER_CHECKPOINT, KEYS, SUBTASKS = 5_000_000, 500_000, 100_000, 2
PROFILED = 4_000_000
TWS_BATCHES, TWS_PER_BATCH = 3, 250_000
GROUP_BY_BATCHES = 15
THREAD_EVENTS, PROCESS_EVENTS, SQL_EVENTS = 400_000, 1_000_000, 10_000_000

Lines = list[dict[str, Any]]


def run(peers: tuple[str, ...] = ()) -> Lines:
    spark = get_session(SparkSettings())
    try:
        with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
            lines = cost(spark, Path(folder) / "cost", SIZES)
        with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
            ours, found = throughput(Path(folder), EVENTS, PER_CHECKPOINT, KEYS)
        lines += found
        if "spark" in peers:
            lines += beside_spark(spark, ours)
    finally:
        spark.stop()
    if "pyflink" in peers:
        lines += beside_pyflink(ours)
    if "flinksql" in peers:
        lines += beside_flink_sql(ours)
    return lines


def profile() -> str:
    """Returns where the CPU time of our programs goes, as a table for people."""
    forms = {
        "process": programs.process_function,
        "sum": programs.builtin_sum,
        "sum-strings": partial(programs.builtin_sum, text=True),
        "mini-batch": programs.mini_batch_sum,
        "mini-batch-strings": partial(programs.mini_batch_sum, text=True),
    }
    found = {}
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as name, sampling.sampled(Path(name)):
        folder = Path(name)
        spark = get_session(SparkSettings())
        try:
            for form, program in forms.items():
                config = JobConfig(form, StorageLocation(str(folder / "store")), cache_dir=str(folder / "cache"))
                with JobAttempt(program(KEYS, PER_CHECKPOINT, SUBTASKS), config, owner="benchmark") as attempt:
                    attempt.run_epoch()
                    before = sampling.cpu_seconds(folder)
                    list(attempt.run_epochs(PROFILED // PER_CHECKPOINT))
                    found[form] = sampling.spent(before, sampling.cpu_seconds(folder))
        finally:
            spark.stop()
    return sampling.table(found, PROFILED)


# --- growing state ----------------------------------------------------------------------------------------------------


def cost(spark: Any, folder: Path, sizes: tuple[int, ...]) -> Lines:
    """Measures state of each size. The largest is also restored and rescaled."""
    StateJob(folder, 100).grow(WARM_UP_ROUNDS)  # Spark, too
    growths = []
    for keys in sizes:
        job = StateJob(folder, keys)
        growths.append(job.grow(TOUCH_ROUNDS))
    least, most = growths[0], growths[-1]
    print(_table(growths), file=sys.stderr)

    job.read_with_pyarrow(spark)
    job.restore(PARALLELISM)
    raw, same, rescaled = [], [], []
    for _ in range(RESTORE_ROUNDS):  # in turn
        raw.append(job.read_with_pyarrow(spark))
        same.append(job.restore(PARALLELISM))
        rescaled.append(job.restore(RESCALED))
    alone = job.restore(1)
    raw_seconds = _best_of_each(raw)
    open_seconds = _best_of_each([r.open_seconds for r in same])
    seconds, rescaled_seconds = min(r.seconds for r in same), min(r.seconds for r in rescaled)
    peak_rss = max(most.peak_rss, alone.peak_rss)

    settings = {"state": "long -> (long, long)", "parallelism": PARALLELISM, "touched keys": TOUCHED}
    sized = {**settings, "keys": most.keys, "state bytes": most.state_bytes}
    lines = []
    for each in growths:
        of_size = {**settings, "keys": each.keys}
        lines += [
            line("state.load_keys_per_s", each.keys / each.load_seconds, "keys/s", settings=of_size),
            line("state.bytes", each.state_bytes, "bytes", settings=of_size),
            line("state.touch_seconds", each.touch_seconds, "s, median", settings=of_size),
            line("state.touch_bytes", each.touch_bytes, "bytes, mean", settings=of_size),
        ]
    compared = f"state of {least.keys:,} keys"
    return [
        *lines,
        line(
            "state.touch_1k_10m_vs_100k",
            most.touch_seconds / least.touch_seconds,
            "ratio of time",
            peer=compared,
            bar="<= 1.5",
            settings=sized,
        ),
        line(
            "state.bytes_1k_10m_vs_100k",
            most.touch_bytes / least.touch_bytes,
            "ratio of bytes written",
            peer=compared,
            bar="<= 2",
            settings=sized,
        ),
        line(
            "state.worker_rss_mb_10m",
            peak_rss / 1e6,
            "MB, peak",
            bar="<= 1000",
            settings={**sized, "parallelism": f"the greater of {PARALLELISM}, and of a restore in one worker"},
        ),
        line(
            "state.restore_vs_pyarrow_read",
            raw_seconds / open_seconds,
            "ratio of rate",
            peer="pyarrow.parquet.read_table of the same files in a bare Spark job",
            bar=">= 0.5",
            settings={**sized, "cache": "empty", "rounds": RESTORE_ROUNDS},
        ),
        line("state.restore_bytes_per_s", most.state_bytes / open_seconds, "bytes/s of one core", settings=sized),
        line(
            "state.rescale_bytes_ratio",
            min(r.read_bytes for r in rescaled) / most.state_bytes,
            "bytes read / bytes of the state",
            bar="<= 1.1",
            settings={**sized, "parallelism": f"{PARALLELISM} -> {RESCALED}"},
        ),
        line(
            "state.rescale_time_ratio",
            rescaled_seconds / seconds,
            "ratio of time",
            peer=f"a restore at parallelism {PARALLELISM}",
            bar="<= 1.3",
            settings={**sized, "parallelism": f"{PARALLELISM} -> {RESCALED}", "rounds": RESTORE_ROUNDS},
        ),
    ]


def _best_of_each(rounds: Sequence[Sequence[float]]) -> float:
    """Returns the seconds of all tasks, with the best round of each task."""
    return sum(min(task) for task in zip(*rounds, strict=True))


def _table(growths: list[Growth]) -> str:
    """Returns the cost of state by its size, as a table for people."""
    rows = ["      keys     state   keys/s written   1k keys touched   written by it   peak RSS"]
    rows += [
        f"{g.keys:>10,} {g.state_bytes / 1e6:>6.1f} MB {g.keys / g.load_seconds:>16,.0f} {g.touch_seconds:>15.3f} s "
        f"{g.touch_bytes / 1e3:>11.1f} kB {g.peak_rss / 1e6:>7.0f} MB"
        for g in growths
    ]
    return "\n".join(rows)


# --- throughput -------------------------------------------------------------------------------------------------------


def _run(attempt: JobAttempt, epochs: int) -> None:
    for _ in attempt.run_epochs(epochs):
        pass


def throughput(folder: Path, events: int, per_checkpoint: int, keys: int) -> tuple[dict[str, float], Lines]:
    """Returns events per second by program, with checkpoints, and the lines about them."""
    actions: dict[str, Callable[[], Any]] = {}
    with ExitStack() as attempts:

        def job(name: str, program: JobGraph) -> JobAttempt:
            config = JobConfig(name, StorageLocation(str(folder / "store")), cache_dir=str(folder / "cache"))
            return attempts.enter_context(JobAttempt(program, config, owner="benchmark"))

        forms = {
            "process": programs.process_function,
            "sum": programs.builtin_sum,
            "mini-batch sum": programs.mini_batch_sum,
        }
        for name, program in forms.items():
            plain = job(f"{name}-plain", program(keys, events, SUBTASKS))
            checkpointed = job(f"{name}-checkpointed", program(keys, per_checkpoint, SUBTASKS))
            actions[f"{name} plain"] = plain.run_epoch
            actions[name] = partial(_run, checkpointed, events // per_checkpoint)
        for action in actions.values():
            action()
        rounds = [{name: timed(action)[0] for name, action in actions.items()} for _ in range(RATE_ROUNDS)]
    rates = {name: events / min(seconds[name] for seconds in rounds) for name in actions}
    settings = _settings(events, per_checkpoint, keys)
    lines = [
        line("state.process_function_events_per_s", rates["process"], "events/s", settings=settings),
        line("state.builtin_sum_events_per_s", rates["sum"], "events/s", settings=settings),
        line("state.mini_batch_sum_events_per_s", rates["mini-batch sum"], "events/s", settings=settings),
        line(
            "state.checkpointed_vs_plain",
            rates["process"] / rates["process plain"],
            "ratio of rate",
            peer="the same without checkpoints but the last one",
            bar=">= 0.85",
            settings={**settings, "program": "process function"},
        ),
        line(
            "state.builtin_sum_checkpointed_vs_plain",
            rates["sum"] / rates["sum plain"],
            "ratio of rate",
            peer="the same without checkpoints but the last one",
            settings={**settings, "program": "built-in sum"},
        ),
    ]
    return rates, lines


def _settings(events: int, per_checkpoint: int, keys: int) -> dict[str, Any]:
    return {
        "events": events,
        "keys": keys,
        "parallelism": SUBTASKS,
        "events per checkpoint": per_checkpoint,
        "rounds": RATE_ROUNDS,
    }


# --- other engines ----------------------------------------------------------------------------------------------------


def beside_spark(spark: Any, ours: dict[str, float]) -> Lines:
    """Compares with Spark. ``transformWithState`` gets smaller micro-batches, because it is slow."""
    return [
        *_beside_spark(
            spark,
            "spark_tws",
            partial(spark_peer.transform_with_state, batches=TWS_BATCHES, per_batch=TWS_PER_BATCH),
            TWS_PER_BATCH,
            ours["process"],
            "Spark transformWithState in Python",
            ">= 40",
        ),
        *_beside_spark(
            spark,
            "spark_jvm_agg",
            partial(spark_peer.group_by_sum, batches=GROUP_BY_BATCHES, per_batch=PER_CHECKPOINT),
            PER_CHECKPOINT,
            ours["mini-batch sum"],
            "Spark groupBy().sum() in the JVM",
            ">= 4",
        ),
    ]


def _beside_spark(spark: Any, name: str, program: Any, per_batch: int, own: float, what: str, bar: str) -> Lines:
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        rate = program(spark, folder, keys=KEYS)
    settings = {"keys": KEYS, "parallelism": SUBTASKS, "events per micro-batch": per_batch, **spark_peer.SETTINGS}
    return _versus(name, rate, settings, own, what, bar)


def beside_pyflink(ours: dict[str, float]) -> Lines:
    """Compares with both modes of PyFlink. In process mode a bundle has the events between two of our checkpoints."""
    lines = []
    modes: tuple[tuple[flink.Mode, int], ...] = (("thread", THREAD_EVENTS), ("process", PROCESS_EVENTS))
    for mode, events in modes:
        configuration = flink.pyflink_settings(mode, KEYS, PER_CHECKPOINT // SUBTASKS)
        rate = flink.pyflink_events_per_second(events, KEYS, SUBTASKS, configuration)
        what = f"PyFlink {flink.VERSION} ValueState, {mode} mode"
        settings = _flink_settings(events, configuration)
        lines += _versus(f"pyflink_{mode}", rate, settings, ours["process"], what, ">= 40")
    return lines


def beside_flink_sql(ours: dict[str, float]) -> Lines:
    """Compares with Flink SQL on RocksDB, whose state may outgrow memory like ours, and on the heap.

    All have a result per key and mini-batch.
    """
    lines = []
    for backend, suffix, bar in (("rocksdb", "", ">= 3"), ("hashmap", "_hashmap", ">= 1.2")):
        configuration = flink.sql_settings(backend)
        rate, own = flink.sql_events_per_second(SQL_EVENTS, KEYS, SUBTASKS, configuration), ours["mini-batch sum"]
        what = f"Flink SQL {flink.VERSION} GROUP BY and SUM, {backend}"
        lines += _versus(f"flink_sql{suffix}", rate, _flink_settings(SQL_EVENTS, configuration), own, what, bar)
    return lines


def _flink_settings(events: int, configuration: dict[str, str]) -> dict[str, Any]:
    return {"events": events, "keys": KEYS, "parallelism": SUBTASKS, "checkpoints": "none", **configuration}


def _versus(name: str, rate: float, settings: dict[str, Any], own: float, what: str, bar: str) -> Lines:
    both = {"ours": _settings(EVENTS, PER_CHECKPOINT, KEYS), "peer": settings}
    return [
        line(f"state.{name}_events_per_s", rate, "events/s", settings=settings),
        line(f"state.vs_{name}", own / rate, "ratio of rate", peer=what, bar=bar, settings=both),
    ]
