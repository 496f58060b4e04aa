"""Recomputations one after the other, also while rows of the one before are in flight, lose and double no row."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE, ReplacedRows, recomputation_of, without_state
from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration.upgrade import roll_back, switch_program
from dagster_flinkpy.storage import StorageLocation
from tests.connectors.delta.test_sink import opened as delta_of
from tests.connectors.iceberg.test_sink import opened as iceberg_of
from tests.examples import examples
from tests.orchestration.recomputed import (
    PER_EPOCH,
    RECORDS,
    SPARK,
    Program,
    Totals,
    catalog_of,
    expected,
    files,
    job_of,
    latest,
    program,
    run,
    table,
    totals_of,
)

pytestmark = pytest.mark.usefixtures("in_process")


def test_rows_that_a_recomputation_has_written_anew_are_not_lost_to_a_since_before_it(tmp_path: Path) -> None:
    def again(times: int, since: str | None = None) -> None:
        switch_program(program(tmp_path, Totals(times)), job, spark=SPARK, recompute=["totals"], since=since)

    job = job_of(tmp_path)
    run(program(tmp_path), tmp_path, 3)
    again(7, "chk-2")
    run(program(tmp_path, Totals(7)), tmp_path, 1)
    later = latest(job).checkpoint_id
    with pytest.raises(RestoreError, match=rf"rows from before and after it together.*chk-1, chk-2, chk-{later}"):
        again(3, "chk-3")
    again(3, "chk-2")
    run(program(tmp_path, Totals(3)), tmp_path, 1)
    assert len(table(tmp_path)[0]) == 5 * PER_EPOCH
    again(9)
    run(program(tmp_path, Totals(9)), tmp_path)
    assert table(tmp_path) == expected(9)


class Times(Totals):
    """Multiplies each record, so that its row says which version has written it."""

    def process_element(self, value: Any, context: Any) -> Any:
        for key, count, _ in super().process_element(value, context):
            yield key, count, self.times * value.total


VERSIONS = st.tuples(
    st.sampled_from(["totals", "totals", "behind-0"]),
    st.none() | st.integers(0, 9),
    st.integers(0, 2),
)


@pytest.mark.system
@given(
    before=st.integers(1, 3),
    versions=st.lists(VERSIONS, min_size=2, max_size=4),
    unaligned=st.booleans(),
    edges=st.integers(1, 2),
    parallelism=st.integers(1, 2),
)
@example(before=1, versions=[("totals", None, 0), ("behind-0", None, 0)], unaligned=False, edges=2, parallelism=1)
@settings(max_examples=examples(40), deadline=None)
def test_each_record_has_one_row_of_the_version_that_has_recomputed_it_last(
    tmp_path_factory: pytest.TempPathFactory,
    before: int,
    versions: list[tuple[str, int | None, int]],
    unaligned: bool,
    edges: int,
    parallelism: int,
) -> None:
    folder, times, writers, read = tmp_path_factory.mktemp("again"), 1, [1] * len(RECORDS), dict[int, int]()

    def of(times: int) -> Program:
        return program(folder, Times(times), unaligned=unaligned, edges=edges, parallelism=parallelism)

    def run_epochs(epochs: int) -> None:
        for _ in range(epochs):
            run(of(times), folder, 1)
            read[latest(job).checkpoint_id] = min((len(read) + 1) * PER_EPOCH, len(RECORDS))

    job = job_of(folder)
    run_epochs(before)
    for number, (uid, pick, epochs) in enumerate(versions, 2):
        changed = uid if edges == 2 else "totals"
        edge = latest(job).operator("numbers.exchange" if changed == "totals" else "totals.exchange")
        assert edge is not None and edge.history is not None
        choices = edge.history.choices
        since = None if pick is None or not choices else choices[pick % len(choices)]
        asked = None if since is None else f"chk-{since}"
        try:
            # What is behind the second edge reads rows again that have a version already.
            new = number if changed == "totals" else times
            switch_program(of(new), job, spark=SPARK, recompute=[changed], since=asked)
        except RestoreError:
            event("refused")
            continue
        if changed == "totals":
            times, first = new, 0 if since is None else read[since]
            writers[first:] = [times] * (len(RECORDS) - first)
        run_epochs(epochs)
        if epochs and not unaligned:
            assert rows_of(folder) == wanted(writers[: max(read.values())])
    run(of(times), folder)
    assert rows_of(folder) == wanted(writers)
    assert TO_REPLACE not in latest(job).properties


def test_rows_between_those_that_wait_to_be_replaced_and_those_that_come_stay(tmp_path: Path) -> None:
    run(program(tmp_path), tmp_path, 3)
    last, graph = latest(job_of(tmp_path)), program(tmp_path)().get_job_graph()
    waiting = {"table": ReplacedRows(last.job_id, 0, 2).to_json()}
    last = replace(last, properties={**last.properties, TO_REPLACE: waiting})
    next_to_it = recomputation_of(last, graph, ["totals"], "chk-2")
    to_replace = ReplacedRows.of(without_state(last, graph, next_to_it), TO_REPLACE)
    assert to_replace is not None and to_replace["table"] == ReplacedRows(last.job_id, 0, 4)
    with pytest.raises(
        RestoreError, match="'table' has yet to replace the rows of a recomputation before: run the job"
    ):
        recomputation_of(last, graph, ["totals"], "chk-3")


@pytest.mark.system
@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_rows_on_s3_are_replaced_and_a_switch_is_taken_back_there(
    tmp_path: Path, s3_location: StorageLocation, kind: str
) -> None:
    place, job = s3_location.child("table"), s3_location.child("jobs").child("job")
    sink: Any = {
        "files": lambda: ParquetSink(place),
        "delta": lambda: DeltaSink(place),
        "iceberg": lambda: IcebergSink("db.t", place, properties=catalog_of(tmp_path)),
    }[kind]()

    def rows() -> Any:
        if kind != "files":
            found = delta_of(sink).to_pyarrow_table() if kind == "delta" else iceberg_of(sink).scan().to_arrow()
            return totals_of(found.to_pylist())
        files = [io.BytesIO(place.open().get(info.key)[0]) for info in place.open().list()]
        return totals_of([row for file in files for row in pq.read_table(file).to_pylist()])

    of = partial(program, tmp_path, sink=sink)
    run(of(), tmp_path, 2, job)
    switch_program(of(Totals(7)), job, spark=SPARK, recompute=["totals"])
    run(of(Totals(7)), tmp_path, 1, job)
    assert rows() == expected(7, epochs=3)
    switch_program(of(Totals(9)), job, spark=SPARK)
    roll_back(of(Totals(7)), job, spark=SPARK)
    run(of(Totals(7)), tmp_path, None, job)
    assert rows() == expected(7)


def rows_of(folder: Path) -> list[int]:
    return sorted(row["total"] for file in files(folder) for row in pq.read_table(file).to_pylist())


def wanted(writers: list[int]) -> list[int]:
    return sorted(times * value for times, (_, _, value) in zip(writers, RECORDS, strict=False))
