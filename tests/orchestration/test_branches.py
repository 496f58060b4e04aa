"""Production and its branches: code locations of one instance, or deployments of Dagster+. Tasks run in the harness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, DailyPartitionsDefinition, Definitions
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.checkpoint.forks.fork import fork_job, list_forks
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import IcebergSink, ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import build_flink_jobs, current_branch, flink_assets
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.programs import word_count

pytestmark = pytest.mark.usefixtures("in_process")

WORDS = ["to", "be", "to", "to", "be", "to"]
Program = Callable[[], StreamExecutionEnvironment]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Counts words, two in each epoch, in a table of the branch."""

    def build() -> StreamExecutionEnvironment:
        return word_count(tmp_path / "tables" / (current_branch() or "production"), WORDS, per_epoch=2)

    return build


class Locations:
    """The code locations of an instance, each loaded where ``FLINKPY_BRANCH`` has another value."""

    def __init__(self, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.instance, self.resources, self.monkeypatch = instance, resources, monkeypatch

    def load(self, branch: str | None, program: Program, **options: Any) -> Definitions:
        """Loads the job *words* in a branch, or in production."""
        self.monkeypatch.setenv("FLINKPY_BRANCH", branch or "")
        assets = flink_assets(program, name="words", fork_in_branches=True, **options)
        jobs = build_flink_jobs(program, name="words", fork_in_branches=True)
        return Definitions(assets, jobs=jobs, resources=self.resources)

    def run(self, location: Definitions, job: str, *, partition: str | None = None, **config: Any) -> str | None:
        """Runs a job, and returns what its failure says, or None."""
        chosen = location.resolve_job_def(job)
        (step,) = [node.name for node in chosen.nodes]
        result = chosen.execute_in_process(
            {"ops": {step: {"config": config}}}, self.instance, partition_key=partition, raise_on_error=False
        )
        failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
        return str(failures[0].description) if failures else None


@pytest.fixture
def locations(instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Locations:
    return Locations(instance, resources, monkeypatch)


def counts(tmp_path: Path, branch: str) -> list[tuple[str, int]]:
    """Returns the rows that a branch, or production, has written."""
    files = (tmp_path / "tables" / branch).glob("*.parquet")
    return sorted((row["f0"], row["f1"]) for file in files for row in pq.read_table(file).to_pylist())


def test_a_branch_continues_from_the_state_of_production_and_then_from_its_own(
    tmp_path: Path, locations: Locations, program: Program
) -> None:
    production, branch = locations.load(None, program), locations.load("loud", program)
    assert {key.path[0] for key in production.resolve_all_asset_keys()} == {"words"}
    assert {key.path[0] for key in branch.resolve_all_asset_keys()} == {"words_loud"}
    locations.monkeypatch.delenv("FLINKPY_BRANCH")
    assert locations.run(production, "words_checkpoint") is None
    assert locations.run(branch, "words_loud_checkpoint") is None
    assert counts(tmp_path, "production") == [("be", 1), ("to", 1)]
    assert counts(tmp_path, "loud") == [("to", 2), ("to", 3)], "it has the counts of production"
    assert [fork.job_id for fork in list_forks(StorageLocation(str(tmp_path / "checkpoints/words")))] == ["words_loud"]
    for _ in range(2):
        assert locations.run(production, "words_checkpoint") is None
    assert locations.run(branch, "words_loud_checkpoint") is None
    assert counts(tmp_path, "production") == [("be", 1), ("be", 2), *(("to", n) for n in range(1, 5))]
    assert counts(tmp_path, "loud") == [("be", 2), ("to", 2), ("to", 3), ("to", 4)], "it is not forked anew"
    mine, theirs = (
        locations.instance.get_latest_materialization_event(AssetKey([name, "table"]))
        for name in ("words_loud", "words")
    )
    assert mine is not None and theirs is not None and mine.run_id != theirs.run_id


def test_a_branch_that_would_write_where_production_does_is_refused_before_it_is_forked(
    tmp_path: Path, locations: Locations, program: Program
) -> None:
    production = locations.load(None, program)
    careless = locations.load("careless", lambda: word_count(tmp_path / "tables/production", WORDS, per_epoch=2))
    assert locations.run(production, "words_checkpoint") is None
    for config in ({}, {"start_empty": True}):
        refused = str(locations.run(careless, "words_careless_checkpoint", **config))
        assert "sink 'table' writes to" in refused
        assert "as sink 'table' of job 'words' does, of which job 'words_careless' is a fork" in refused
    assert not (tmp_path / "checkpoints/words_careless").exists()
    assert counts(tmp_path, "production") == [("be", 1), ("to", 1)]


def test_a_branch_writes_to_a_branch_of_the_iceberg_table_of_production(tmp_path: Path, locations: Locations) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}

    def program(branch: str | None = None) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        source = CollectionSource(WORDS, Types.STRING(), records_per_epoch=2)
        words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        chosen = branch or current_branch() or "main"
        words.sink_to(IcebergSink("db.words", str(tmp_path / "lake"), properties=catalog, branch=chosen)).uid("table")
        return env

    production, loud = locations.load(None, program), locations.load("loud", program)
    careless = locations.load("careless", lambda: program("main"))
    locations.monkeypatch.delenv("FLINKPY_BRANCH")
    assert locations.run(production, "words_checkpoint") is None
    assert "Both would write the same rows" in str(locations.run(careless, "words_careless_checkpoint"))
    assert locations.run(loud, "words_loud_checkpoint") is None
    table = load_catalog("default", **catalog).load_table("db.words")
    assert table.scan().to_arrow().num_rows == 2
    assert sorted(table.scan().use_ref("loud").to_arrow().column("value").to_pylist()) == ["be", "to", "to", "to"]


def test_a_branch_of_a_job_without_state_has_to_be_started_empty(
    tmp_path: Path, locations: Locations, program: Program
) -> None:
    branch = locations.load("new", program)
    refused = str(locations.run(branch, "words_new_checkpoint"))
    assert "starts with the state of job 'words', but there is no checkpoint of it" in refused
    assert locations.run(branch, "words_new_checkpoint", start_empty=True) is None
    assert locations.run(branch, "words_new_checkpoint") is None
    assert counts(tmp_path, "new") == [("be", 1), ("to", 1), ("to", 2), ("to", 3)]


@pytest.mark.system
def test_the_upgrade_job_of_a_branch_works_on_the_state_of_production(
    tmp_path: Path, locations: Locations, program: Program
) -> None:
    assert locations.run(locations.load(None, program), "words_checkpoint") is None
    before = tmp_path / "before.py"
    before.write_text(
        "from pathlib import Path\nfrom tests.orchestration.programs import word_count\n"
        f"def env(): return word_count(Path({str(tmp_path / 'tables/production')!r}), {WORDS!r}, per_epoch=2)\n"
    )
    branch = locations.load("loud", program)
    assert locations.run(branch, "words_loud_upgrade", from_program=f"{before}:env") is None
    refused = locations.run(branch, "words_loud_upgrade", from_program=f"{before}:env", switch_if_same=True)
    assert "a branch cannot switch job 'words' of production to its version" in str(refused)
    assert not (tmp_path / "checkpoints/words_loud").exists()


def test_a_branch_of_a_job_with_partitions_goes_on_with_the_next_partition(
    tmp_path: Path, locations: Locations
) -> None:
    (tmp_path / "words").mkdir()
    row = Types.ROW_NAMED(["word"], [Types.STRING()])

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        source = ParquetSource(str(tmp_path / "words"), row_type=row, partition_format="%Y-%m-%d")
        words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        counted = words.key_by("word").count().uid("counts")
        counted.sink_to(ParquetSink(str(tmp_path / "tables" / (current_branch() or "production")))).uid("table")
        return env

    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-03")
    first, second = days.get_partition_keys()
    for day in (first, second):
        pq.write_table(pa.table({"word": ["to"]}), tmp_path / "words" / f"{day}.parquet")
    production = locations.load(None, program, partitions_def=days)
    branch = locations.load("loud", program, partitions_def=days)
    assert locations.run(production, "words_checkpoint", partition=first) is None
    assert locations.run(branch, "words_loud_checkpoint", partition=second) is None
    files = (tmp_path / "tables/loud").rglob("*.parquet")
    [written] = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert written["count"] == 2


def test_a_branch_deployment_of_dagster_plus_has_the_keys_of_production(
    monkeypatch: pytest.MonkeyPatch, locations: Locations, program: Program
) -> None:
    monkeypatch.setenv("DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT", "1")
    with pytest.raises(ConfigurationError, match="DAGSTER_CLOUD_DEPLOYMENT_NAME is not set"):
        locations.load(None, program)
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "4f1c")
    branch = locations.load(None, program)
    assert {key.path[0] for key in branch.resolve_all_asset_keys()} == {"words"}
    assert branch.resolve_job_def("words_4f1c_checkpoint").tags["flink/job"] == "words_4f1c"


def test_nothing_is_different_in_a_deployment_that_is_no_branch(
    monkeypatch: pytest.MonkeyPatch, locations: Locations, program: Program
) -> None:
    monkeypatch.setenv("DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT", "0")
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "prod")
    assert locations.load(None, program).resolve_job_def("words_checkpoint").tags["flink/job"] == "words"
    monkeypatch.setenv("FLINKPY_BRANCH", "loud")
    [assets] = flink_assets(program, name="words")
    assert {key.path[0] for key in assets.keys} == {"words"}, "nobody has asked for it"


def test_a_branch_that_cannot_be_part_of_a_name(locations: Locations, program: Program) -> None:
    with pytest.raises(ConfigurationError, match="'words_feature/loud'"):
        locations.load("feature/loud", program)


@pytest.mark.system
def test_a_job_with_partitions_takes_its_folder_along_to_a_new_name(tmp_path: Path, locations: Locations) -> None:
    """After the fork that was advised, and the end of the old job, only the next partition could run."""
    (tmp_path / "in").mkdir()
    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-03")
    keys = days.get_partition_keys()
    for day in keys:
        pq.write_table(pa.table({"word": ["to"]}), tmp_path / "in" / f"{day}.parquet")

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        row = Types.ROW_NAMED(["word"], [Types.STRING()])
        source = ParquetSource(str(tmp_path / "in"), row_type=row, partition_format="%Y-%m-%d")
        words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        words.key_by("word").count().uid("counts").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    def run(name: str, partition: str) -> str | None:
        assets = flink_assets(program, name=name, partitions_def=days)
        location = Definitions(assets, resources=locations.resources)
        return locations.run(location, "__ASSET_JOB", partition=partition)

    assert [run("words", day) for day in keys] == [None, None]
    old, new = tmp_path / "checkpoints/words", tmp_path / "checkpoints/terms"
    said = run("terms", keys[1])
    assert said is not None and f"move file://{old} with all that is in it to file://{new}" in said
    old.rename(new)
    assert run("terms", keys[1]) is None
    files = (tmp_path / "table").rglob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert sorted(row["count"] for row in rows) == [1, 2], "it starts from the first one, and its row is replaced"


@pytest.mark.system
def test_a_job_under_a_new_name_does_not_write_its_rows_once_more(tmp_path: Path, locations: Locations) -> None:
    def named(name: str, words: list[str]) -> Definitions:
        assets = flink_assets(lambda: word_count(tmp_path / "tables" / "all", words, per_epoch=2), name=name)
        return Definitions(assets, resources=locations.resources)

    job, storage = "__ASSET_JOB", locations.resources["checkpoint_storage"].location()
    assert locations.run(named("words", WORDS), job) is None
    said = locations.run(named("terms", WORDS), job)
    assert said is not None
    assert "job 'words' beside it has the same program: 'terms' would read its input again, and write" in said
    assert counts(tmp_path, "all") == [("be", 1), ("to", 1)]
    assert locations.run(named("others", ["or"]), job) is None, "it is another program"

    fork_job(storage.child("words"), "terms")
    dispose_job(storage.child("words"))
    assert locations.run(named("terms", WORDS), job) is None
    assert counts(tmp_path, "all") == [("be", 1), ("or", 1), ("to", 1), ("to", 2), ("to", 3)]
    assert locations.run(named("again", WORDS), job, start_empty=True) is None, "somebody wants them once more"
    assert counts(tmp_path, "all").count(("be", 1)) == 2
