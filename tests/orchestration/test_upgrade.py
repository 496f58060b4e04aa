"""A new version of a program is tried beside the old one on forks, made the job's at a barrier, and taken back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetCheckKey, AssetKey, DagsterInstance, Definitions
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint import offline
from dagster_flinkpy.checkpoint.forks.fork import fork_job, list_forks
from dagster_flinkpy.checkpoint.offline import release_leadership
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CheckpointError, ConfigurationError, JobNotFoundError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    SparkResource,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.orchestration.program import program_attempt
from dagster_flinkpy.orchestration.upgrade import (
    RowDifference,
    UpgradeVerdict,
    prove_upgrade,
    roll_back,
    switch_program,
)
from dagster_flinkpy.orchestration.upgrade.row_difference import compare_rows
from dagster_flinkpy.storage import StorageLocation
from tests.checkpoint.interruptions import Died, at_request, dies
from tests.examples import examples
from tests.runtime.programs import environment, events

pytestmark = pytest.mark.usefixtures("in_process")

ROW = Types.ROW_NAMED(["key", "count", "total"], [Types.STRING(), Types.LONG(), Types.LONG()])
RECORDS = [(f"k{i % 4}", i, i) for i in range(48)]
SPARK = SparkResource()
Program = Callable[[], StreamExecutionEnvironment]


class Totals(KeyedProcessFunction):
    """Keeps a count and a total for each key.

    Args:
        wrong: A record that is counted twice.
    """

    def __init__(self, wrong: int | None = None) -> None:
        self.wrong = wrong

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1 + (value.value == self.wrong))
        self.total.update((self.total.value() or 0) + value.value)
        yield value.key, self.count.value(), self.total.value()


class Sums(Totals):
    """Keeps the total in a state of another name."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.total = context.get_state(ValueStateDescriptor("sum", Types.LONG()))


def renamed(states: dict[str, pa.Table]) -> dict[Any, pa.Table]:
    return {"count": states["count"], ValueStateDescriptor("sum", Types.LONG()): states["total"]}


def program(folder: Path, function: Any, migrate: Any = None) -> Program:
    def build() -> StreamExecutionEnvironment:
        env = environment(2)
        counted = events(env, RECORDS, per_epoch=8).key_by("key").process(function, ROW).uid("totals")
        counted.sink_to(ParquetSink(str(folder / "table"))).uid("table")
        if migrate is not None:
            env.migrate_state("totals", 0, migrate)
        return env

    return build


def job_of(folder: Path) -> StorageLocation:
    return StorageLocation(str(folder / "jobs" / "job"))


def run(program: Program, folder: Path, epochs: int) -> None:
    attempt = program_attempt(program, job_of(folder), spark=SPARK, owner="test", on_progress=lambda line: None)
    with attempt:
        for _ in range(epochs):
            attempt.run_epoch()


def table(folder: Path) -> list[tuple[Any, ...]]:
    files = sorted((folder / "table").glob("*.parquet"))
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def expected(epochs: int) -> list[tuple[Any, ...]]:
    counts, totals, rows = dict[str, int](), dict[str, int](), []
    for key, _, value in RECORDS[: 8 * epochs]:
        counts[key], totals[key] = counts.get(key, 0) + 1, totals.get(key, 0) + value
        rows.append((key, counts[key], totals[key]))
    return sorted(rows)


def test_a_change_that_changes_no_row_is_proved_switched_to_and_taken_back(tmp_path: Path) -> None:
    old, new = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed)
    run(old, tmp_path, 3)
    job = job_of(tmp_path)
    before = sorted(tmp_path.rglob("*.parquet"))
    report = prove_upgrade(old, new, job, spark=SPARK)
    assert (report.verdict, report.since, report.epochs) == (UpgradeVerdict.SAME, 1, 2)
    assert report.tables == (RowDifference("table", 16, 16),)
    assert sorted(tmp_path.rglob("*.parquet")) == before
    assert switch_program(new, job, spark=SPARK) > 3
    run(new, tmp_path, 1)
    assert table(tmp_path) == expected(4)
    assert roll_back(old, job, spark=SPARK) > 4
    run(old, tmp_path, 2)
    assert table(tmp_path) == expected(6)


FORMS = ("value", "map", "list")


class Kept(KeyedProcessFunction):
    """Counts and sums by key.

    Args:
        form: The kind of state.
        name: The name of the state.
        wrong: A record that is taken twice.
        silent: Records from this one on give no row.
    """

    def __init__(self, form: str, name: str = "kept", wrong: int | None = None, silent: int | None = None) -> None:
        self.form, self.name, self.wrong, self.silent = form, name, wrong, silent

    def open(self, context: Any) -> None:
        get = {"value": context.get_state, "map": context.get_map_state, "list": context.get_list_state}
        self.state = get[self.form](descriptor(self.form, self.name))

    def process_element(self, value: Any, context: Any) -> Any:
        for _ in range(1 + (value.value == self.wrong)):
            if self.form == "value":
                self.state.update([*(self.state.value() or []), value.value])
            elif self.form == "map":
                self.state.put(len(list(self.state.keys())), value.value)
            else:
                self.state.add(value.value)
        kept = {"value": "value", "map": "values", "list": "get"}[self.form]
        found = list(getattr(self.state, kept)())
        if self.silent is None or value.value < self.silent:
            yield value.key, len(found), sum(found)


def descriptor(form: str, name: str) -> Any:
    if form == "value":
        return ValueStateDescriptor(name, Types.LIST(Types.LONG()))
    return (
        MapStateDescriptor(name, Types.LONG(), Types.LONG())
        if form == "map"
        else ListStateDescriptor(name, Types.LONG())
    )


class Model:
    """What a version writes, by the state that it goes on from."""

    def __init__(self, wrong: int | None, silent: int | None, state: dict[str, list[int]]) -> None:
        self.wrong, self.silent, self.state = wrong, silent, {key: [*kept] for key, kept in state.items()}

    def read(self, epochs: range) -> list[tuple[Any, ...]]:
        rows = []
        for key, _, value in RECORDS[8 * epochs.start : 8 * epochs.stop]:
            kept = self.state.setdefault(key, [])
            kept += [value] * (1 + (value == self.wrong))
            if self.silent is None or value < self.silent:
                rows.append((key, len(kept), sum(kept)))
        return rows


# The fork, which reads on, dies between a checkpoint and its commit.
@pytest.mark.system
@example(form="value", moves=False, wrong=None, silent=None, dying="back", at=57, before=1, between=2)
@given(
    form=st.sampled_from(FORMS),
    moves=st.booleans(),
    wrong=st.none() | st.integers(0, 47),
    silent=st.none() | st.integers(0, 47),
    dying=st.sampled_from([None, "prove", "switch", "back"]),
    at=st.integers(1, 300),
    before=st.integers(1, 3),
    between=st.integers(0, 2),
)
@settings(max_examples=examples(20), deadline=None)
def test_an_upgrade_names_the_rows_that_differ_and_loses_and_doubles_none_wherever_it_dies(
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    moves: bool,
    wrong: int | None,
    silent: int | None,
    dying: str | None,
    at: int,
    before: int,
    between: int,
) -> None:
    def moved(states: dict[str, pa.Table]) -> dict[Any, pa.Table]:
        return {descriptor(form, "moved"): states["kept"]}

    folder = tmp_path_factory.mktemp("upgrade")
    changed = Kept(form, "moved" if moves else "kept", wrong, silent)
    old, new = program(folder, Kept(form)), program(folder, changed, moved if moves else None)
    job = job_of(folder)
    steps: dict[str, Callable[[], Any]] = {
        "prove": lambda: prove_upgrade(old, new, job, spark=SPARK),
        "switch": lambda: switch_program(new, job, spark=SPARK),
        "back": lambda: roll_back(old, job, spark=SPARK),
    }

    def repeated(step: str) -> Any:
        if step == dying:
            with suppress(Died), at_request(at, dies):
                return steps[step]()
            for name in (
                "job",
                "job_before",
                "job_before_back",
                "job_proof_old",
                "job_proof_new",
            ):  # whose runs are dead
                with suppress(CheckpointError):  # it may be disposed of in part
                    release_leadership(job.parent.child(name), owner="test", now_ms=current_millis())
        return steps[step]()

    run(old, folder, before)
    found = repeated("prove")
    assert found is not None
    model = Model(None, None, {})
    model.read(range(found.since))
    other = Model(wrong, silent, model.state)
    rows, others = (Counter(each.read(range(found.since, found.since + found.epochs))) for each in (model, other))
    [difference] = found.tables
    assert (difference.only_before, difference.only_after) == ((rows - others).total(), (others - rows).total())
    for shown, only in ((difference.examples_before, rows - others), (difference.examples_after, others - rows)):
        assert {tuple(row.values()) for row in shown} <= {*only}
        assert bool(shown) is bool(only)
    assert found.verdict is (UpgradeVerdict.SAME if rows == others else UpgradeVerdict.DIFFERENT)
    repeated("switch")
    run(new, folder, between)
    repeated("back")
    run(old, folder, 1)
    straight = Model(None, None, {})
    written = straight.read(range(before))
    written += Model(wrong, silent, straight.state).read(range(before, before + between))
    straight.read(range(before, before + between))
    assert table(folder) == sorted(written + straight.read(range(before + between, before + between + 1)))


@pytest.mark.parametrize("step", ["switch", "back"])
def test_what_a_proof_that_died_has_left_goes_with_the_next_step(tmp_path: Path, step: str) -> None:
    old, new, job = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed), job_of(tmp_path)
    run(old, tmp_path, 2)
    if step == "back":
        switch_program(new, job, spark=SPARK)
    fork_job(job, "job_proof_old")
    job.parent.child("job_proof_rows").open().put("old/table/part", b"rows")
    if step == "back":
        roll_back(old, job, spark=SPARK)
    else:
        switch_program(new, job, spark=SPARK)
    assert [each.job_id for each in list_forks(job)] == ["job_before"]
    assert sorted(job.parent.open().list_folders()) == ["job/", "job_before/"]


def test_a_proof_that_may_be_at_work_is_left_alone(tmp_path: Path) -> None:
    old, new, job = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed), job_of(tmp_path)
    run(old, tmp_path, 2)
    fork_job(job, "job_proof_old")
    elsewhere = program(tmp_path / "elsewhere", Totals())
    with program_attempt(elsewhere, job.parent.child("job_proof_old"), spark=SPARK, owner="test", on_progress=print):
        switch_program(new, job, spark=SPARK)
        assert [each.job_id for each in list_forks(job)] == ["job_before", "job_proof_old"]


def test_a_job_that_goes_on_may_drop_the_checkpoint_that_is_proved_upon(tmp_path: Path) -> None:
    """With a short interval it is gone before the second version begins."""
    old, new = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed)
    run(old, tmp_path, 2)

    def say(line: str) -> None:
        if line.startswith("running the old program"):
            run(old, tmp_path, 3)

    report = prove_upgrade(old, new, job_of(tmp_path), spark=SPARK, on_progress=say)
    assert report.verdict is UpgradeVerdict.SAME


def test_the_rows_that_differ_are_named(tmp_path: Path) -> None:
    old, new = program(tmp_path, Totals()), program(tmp_path, Totals(wrong=23))
    run(old, tmp_path, 3)
    report = prove_upgrade(old, new, job_of(tmp_path), spark=SPARK, at="chk-2")
    assert report.verdict is UpgradeVerdict.DIFFERENT
    [found] = report.tables
    assert (found.before, found.after, found.only_before, found.only_after) == (8, 8, 1, 1)
    assert found.examples_before == ({"key": "k3", "count": 6, "total": 78},)
    assert found.examples_after == ({"key": "k3", "count": 7, "total": 78},)
    assert table(tmp_path) == expected(3)


@pytest.mark.system
def test_the_rows_of_a_sink_that_the_new_program_no_longer_has_are_missing(tmp_path: Path) -> None:
    new = program(tmp_path, Totals())

    def old() -> StreamExecutionEnvironment:
        env = environment(2)
        counted = events(env, RECORDS, per_epoch=8).key_by("key").process(Totals(), ROW).uid("totals")
        for uid in ("table", "gone"):
            counted.sink_to(ParquetSink(str(tmp_path / uid))).uid(uid)
        return env

    run(old, tmp_path, 3)
    report = prove_upgrade(old, new, job_of(tmp_path), spark=SPARK)
    assert report.verdict is UpgradeVerdict.DIFFERENT
    found = {each.sink: (each.before, each.after, each.same) for each in report.tables}
    assert found == {"table": (16, 16, True), "gone": (16, 0, False)}


def test_a_program_that_cannot_go_on_from_the_state_is_refused_before_anything_runs(tmp_path: Path) -> None:
    class Texts(Totals):
        def open(self, context: Any) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", Types.STRING()))

    old = program(tmp_path, Totals())
    run(old, tmp_path, 2)
    report = prove_upgrade(old, program(tmp_path, Texts()), job_of(tmp_path), spark=SPARK)
    assert report.verdict is UpgradeVerdict.REFUSED
    assert "count" in str(report.plan.problem)


def test_programs_that_read_something_else_prove_nothing(tmp_path: Path) -> None:
    def other() -> StreamExecutionEnvironment:
        env = environment(2)
        counted = events(env, RECORDS, per_epoch=4).key_by("key").process(Totals(), ROW).uid("totals")
        counted.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    old = program(tmp_path, Totals())
    run(old, tmp_path, 3)
    report = prove_upgrade(old, other, job_of(tmp_path), spark=SPARK)
    assert report.verdict is UpgradeVerdict.UNKNOWN
    assert report.problems == ("source 'events' was not read equally far by both programs",)


def test_there_is_no_way_back_without_a_fork_or_beyond_what_was_read(tmp_path: Path) -> None:
    old = program(tmp_path, Totals())
    job = job_of(tmp_path)
    with pytest.raises(CheckpointError, match="no completed checkpoint"):
        prove_upgrade(old, old, job, spark=SPARK)
    run(old, tmp_path, 1)
    with pytest.raises(JobNotFoundError, match="no fork"):
        roll_back(old, job, spark=SPARK)


def test_a_run_amid_a_roll_back_doubles_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, job = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed), job_of(tmp_path)
    run(old, tmp_path, 1)
    switch_program(new, job, spark=SPARK)
    trigger = offline.trigger_savepoint

    def after_a_run(fork: StorageLocation) -> str:
        run(new, tmp_path, 1)
        return trigger(fork)

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="has gone on while the old program"):
        patch.setattr(offline, "trigger_savepoint", after_a_run)
        roll_back(old, job, spark=SPARK)
    run(new, tmp_path, 1)
    roll_back(old, job, spark=SPARK)
    run(old, tmp_path, 1)
    assert table(tmp_path) == expected(4)
    switch_program(new, job, spark=SPARK)


@pytest.mark.parametrize("name", ["job_proof_old", "job_proof_new", "job_proof_rows"])
def test_a_job_with_the_name_of_a_fork_of_a_proof_is_not_deleted(tmp_path: Path, name: str) -> None:
    old, job = program(tmp_path / "job", Totals()), job_of(tmp_path)
    new, other = program(tmp_path / "job", Sums(), renamed), job.parent.child(name)
    options: dict[str, Any] = {"spark": SPARK, "owner": "test", "on_progress": lambda line: None}
    for each in (job, other):
        with program_attempt(program(tmp_path / each.name, Totals()), each, **options) as attempt:
            attempt.run_epoch()
    before = {info.key: info.size for info in other.open().list()}
    with pytest.raises(ConfigurationError, match=f"'{name}' is no fork of job 'job'"):
        prove_upgrade(old, new, job, spark=SPARK)
    switch_program(new, job, spark=SPARK)
    assert {info.key: info.size for info in other.open().list()} == before


@pytest.mark.parametrize("name", ["job", "sales", "job_before"])
def test_a_job_that_is_no_fork_is_neither_deleted_by_a_switch_nor_read_by_a_roll_back(
    tmp_path: Path, name: str
) -> None:
    old, job = program(tmp_path, Totals()), job_of(tmp_path)
    other, named = job.parent.child(name), None if name == "job_before" else name
    options: dict[str, Any] = {"spark": SPARK, "owner": "test", "on_progress": lambda line: None}
    for each in {job.url: job, other.url: other}.values():
        with program_attempt(program(tmp_path / each.name, Totals()), each, **options) as attempt:
            attempt.run_epoch()
    before = CompletedCheckpointStore(other.open()).latest()
    with pytest.raises(ConfigurationError, match=f"'{name}' is no fork of job 'job'"):
        switch_program(program(tmp_path / "job", Sums(), renamed), job, spark=SPARK, keep=named)
    with pytest.raises(ConfigurationError, match=f"'{name}' is no fork of job 'job'"):
        roll_back(old, job, spark=SPARK, kept=named)
    assert CompletedCheckpointStore(other.open()).latest() == before


def test_dagster_shows_the_verdict_as_a_check_of_each_table(tmp_path: Path) -> None:
    programs = tmp_path / "programs_before.py"
    programs.write_text(
        "from pathlib import Path\n"
        "from tests.orchestration.test_upgrade import Totals, program\n"
        "before = program(Path(__file__).parent, Totals())\n"
    )
    run(program(tmp_path, Totals()), tmp_path, 3)
    for wrong in (None, 23):
        jobs = {each.name: each for each in build_flink_jobs(program(tmp_path, Totals(wrong)), name="job")}
        config = {"ops": {"prove_upgrade_of_job": {"config": {"from_program": f"{programs}:before"}}}}
        resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
        result = jobs["job_upgrade"].execute_in_process(config, resources=resources)
        assert result.output_for_node("prove_upgrade_of_job") == ("same rows" if wrong is None else "rows differ")
        [check] = result.get_asset_check_evaluations()
        assert (check.check_name, check.passed) == ("same_rows", wrong is None)
    assert "1 of 16 rows only before, 1 of 16 only after" in str(check.description)


def test_the_page_shows_the_verdict_until_the_next_one_or_a_switch(tmp_path: Path) -> None:
    programs = tmp_path / "programs_of_the_page.py"
    programs.write_text(
        "from pathlib import Path\nfrom tests.orchestration.test_upgrade import Totals, program\n"
        f"before = program(Path({str(tmp_path)!r}), Totals())\n"
    )
    run(program(tmp_path, Totals()), tmp_path, 2)
    new = program(tmp_path, Totals(13))
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    assets = flink_assets(new(), name="job", checks=FlinkAssetChecks())
    definitions = Definitions(assets, jobs=build_flink_jobs(new, name="job"), resources=resources)
    key = AssetCheckKey(AssetKey(["job", "table"]), "same_rows")
    with DagsterInstance.ephemeral() as instance:

        def launch(job: str, **config: Any) -> None:
            found = definitions.resolve_job_def(job).execute_in_process({"ops": config}, instance=instance)
            assert found.success

        def shown() -> tuple[bool, str | None]:
            config = {"ops": {"job": {"config": {"epochs": 1}}}}
            result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(config, instance)
            [check] = [each for each in result.get_asset_check_evaluations() if each.asset_check_key == key]
            return check.passed, check.description

        assert shown() == (True, "no upgrade was proved yet: launch job_upgrade")
        launch("job_upgrade", prove_upgrade_of_job={"config": {"from_program": f"{programs}:before"}})
        passed, said = shown()
        assert (passed, "of 16 rows only before" in str(said)) == (False, True)
        launch("job_switch")
        passed, said = shown()
        assert (passed, str(said)[: str(said).index(" since")]) == (True, "the job has another version")


def test_jobs_of_each_version_bring_the_job_to_it(tmp_path: Path) -> None:
    old, new = program(tmp_path, Totals()), program(tmp_path, Sums(), renamed)
    run(old, tmp_path, 2)
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}

    def launch(env: Program, verb: str) -> None:
        [job] = [each for each in build_flink_jobs(env, name="job") if each.name == f"job_{verb}"]
        assert job.execute_in_process(resources=resources).success

    launch(new, "switch")
    run(new, tmp_path, 1)
    launch(old, "rollback")
    run(old, tmp_path, 3)
    assert table(tmp_path) == expected(6)


@pytest.mark.system
def test_an_upgrade_by_rule_switches_only_if_no_row_differs(tmp_path: Path) -> None:
    programs = tmp_path / "programs_by_rule.py"
    programs.write_text(
        "from pathlib import Path\nfrom tests.orchestration.test_upgrade import Totals, program\n"
        f"before = program(Path({str(tmp_path)!r}), Totals())\n"
    )
    run(program(tmp_path, Totals()), tmp_path, 3)
    config = {"from_program": f"{programs}:before", "switch_if_same": True}
    resources = {"spark": SPARK, "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    forks = []
    for new in (program(tmp_path, Totals(23)), program(tmp_path, Sums(), renamed)):
        [job] = [each for each in build_flink_jobs(new, name="job") if each.name == "job_upgrade"]
        assert job.execute_in_process(
            {"ops": {"prove_upgrade_of_job": {"config": config}}}, resources=resources
        ).success
        forks.append([fork.job_id for fork in list_forks(job_of(tmp_path))])
    assert forks == [[], ["job_before"]]
    run(program(tmp_path, Sums(), renamed), tmp_path, 3)
    assert table(tmp_path) == expected(6)


TABLES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3) | st.none()), max_size=12)


@given(TABLES, TABLES, st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_rows_are_compared_as_often_as_they_occur(
    tmp_path_factory: pytest.TempPathFactory, old: list[Any], new: list[Any], keyed: bool
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("old", old), ("new", new)):
        (folder / name).mkdir()
        for number in range(0, len(rows), 5):
            keys, values = zip(*rows[number : number + 5], strict=True)
            pq.write_table(
                pa.table({"key": keys, "n": pa.array(values, pa.int64())}), folder / name / f"{number}.parquet"
            )
    one, other = (StorageLocation(str(folder / name)) for name in ("old", "new"))
    found = compare_rows("t", one, other, ["key"] if keyed else ())
    only_old = [row for row in {*old} for _ in range(max(0, old.count(row) - new.count(row)))]
    only_new = [row for row in {*new} for _ in range(max(0, new.count(row) - old.count(row)))]
    assert (found.before, found.after) == (len(old), len(new))
    assert (found.only_before, found.only_after) == (len(only_old), len(only_new))
    assert found.same is (sorted(map(str, old)) == sorted(map(str, new)))
    if keyed and old and new:
        assert found.changed_keys == len({key for key, _ in only_old} & {key for key, _ in only_new})


_WIDE = pa.decimal256(50, 2)
_BOTH = pa.struct([("x", pa.float64()), ("n", _WIDE)])


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        (pa.array([0.0]), pa.array([-0.0]), True),
        (pa.array([0.0], pa.float32()), pa.array([-0.0], pa.float32()), True),
        (pa.array([[0.0]]), pa.array([[-0.0]]), True),
        (pa.array([{"x": -0.0}]), pa.array([{"x": -0.0}]), False),
        (pa.array([{"x": 0.0}], _BOTH), pa.array([{"x": -0.0}], _BOTH), True),
        (pa.array([float("nan"), 0.1]), pa.array([0.1, -float("nan")]), False),
        (pa.array([Decimal("1.10")], _WIDE), pa.array([Decimal("1.10")], _WIDE), False),
        (pa.array([[Decimal("1.10")]], pa.list_(_WIDE)), pa.array([[Decimal("1.20")]], pa.list_(_WIDE)), True),
    ],
)
def test_values_that_duckdb_does_not_tell_apart_or_does_not_know(
    tmp_path: Path, old: pa.Array, new: pa.Array, differ: bool
) -> None:
    for name, column in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"v": column}), tmp_path / name / "0.parquet")
    found = compare_rows("t", *(StorageLocation(str(tmp_path / name)) for name in ("old", "new")))
    assert (found.only_before, found.only_after, found.columns) == (int(differ), int(differ), ())
    assert [list(row) for row in found.examples_before] == [["v"]] * differ
