"""Loads the component with Dagster's loader, and checks that the example project is what the scaffolder writes."""

from __future__ import annotations

import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from dagster import (
    AssetKey,
    AutomationCondition,
    BackfillPolicy,
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    FreshnessPolicy,
    MonthlyPartitionsDefinition,
    RetryPolicy,
    build_sensor_context,
    load_from_defs_folder,
    with_source_code_references,
)
from dagster.components.core.package_entry import discover_entry_point_package_objects, is_scaffoldable_object_key
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey
from pydantic import ValidationError

from dagster_flinkpy.orchestration import FlinkOperatorData, build_supervising_sensor
from dagster_flinkpy.orchestration.component import pipeline_component
from dagster_flinkpy.orchestration.component.pipeline_component import FlinkPipelineComponent

EXAMPLE = Path(__file__).parents[3] / "examples" / "dg_project"
TYPE = "dagster_flinkpy.FlinkPipelineComponent"
PARTITIONED = """
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.datastream import StreamExecutionEnvironment


def pipeline():
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ParquetSource(
        "/nowhere", row_type=Types.ROW_NAMED(["a"], [Types.LONG()]), partition_format="%Y-%m"
    )
    env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    return env
"""


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def load(sandbox: DefsFolderSandbox) -> Any:
    """Loads the definitions of a scaffolded pipeline with these attributes."""

    def definitions(attributes: dict[str, Any], program: str | None = None) -> Definitions:
        folder = sandbox.scaffold_component(FlinkPipelineComponent, "words")
        given = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
        document = {"type": TYPE, "attributes": {**given, "arguments": {}, **attributes}}
        if program is None:
            document["attributes"]["arguments"] = {"table": "/tmp/none", **attributes.get("arguments", {})}
        else:
            (folder / "pipeline.py").write_text(program)
        (folder / "defs.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        with sandbox.build_all_defs() as defs:
            defs.resolve_all_job_defs()
            return defs

    return definitions


def names(definitions: Any) -> set[str]:
    return {one.name for one in definitions or []}


def test_what_is_not_switched_on_is_not_there(load: Any) -> None:
    defs = load({"sensors": {}, "jobs": False})
    assert {key.path[-1] for key in defs.resolve_all_asset_keys()} == {"words", "counts", "table"}
    assert not defs.sensors
    assert not defs.jobs
    assert not defs.resolve_asset_graph().asset_check_keys


def test_a_branch_has_a_job_of_its_own(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLINKPY_BRANCH", "loud")
    defs = load({"fork_in_branches": True, "jobs": True, "sensors": {"checkpoint": True}})
    assert {key.path[0] for key in defs.resolve_all_asset_keys()} == {"words_loud"}
    assert {"words_loud_checkpoint", "words_loud_savepoint"} <= names(defs.jobs)
    assert names(defs.sensors) == {"words_loud_checkpoint_sensor"}


def test_attributes_of_all_assets(load: Any) -> None:
    defs = load(
        {
            "owners": ["team:data"],
            "freshness_policy": {"fail_window": "1 d", "warn_window": "12 h"},
            "automation_condition": "{{ dg.AutomationCondition.eager() }}",
            "retry_policy": {"max_retries": 2, "delay": 30},
        }
    )
    table = defs.resolve_asset_graph().get(AssetKey(["words", "table"]))
    assert table.owners == ["team:data"]
    assert table.freshness_policy == FreshnessPolicy.time_window(timedelta(days=1), timedelta(hours=12))
    assert table.automation_condition == AutomationCondition.eager()
    (assets,) = defs.assets
    assert assets.op.retry_policy == RetryPolicy(max_retries=2, delay=30)
    assert assets.op.description.startswith("Builds the program.")
    assert load({}).resolve_asset_graph().get(table.key).freshness_policy is None


def test_dagsters_own_post_processing_changes_single_assets(sandbox: DefsFolderSandbox) -> None:
    folder = sandbox.scaffold_component(FlinkPipelineComponent, "words")
    document = yaml.safe_load((folder / "defs.yaml").read_text())
    document["attributes"]["freshness_policy"] = "{{ dg.FreshnessPolicy.cron('0 9 * * *', lower_bound_delta=hour) }}"
    document["template_vars_module"] = ".variables"
    (folder / "variables.py").write_text(
        "import datetime, dagster as dg\n\n@dg.template_var\ndef hour():\n    return datetime.timedelta(hours=1)\n"
    )
    document["post_processing"] = {
        "assets": [
            {
                "target": 'key:"words/table"',
                "attributes": {"owners": ["team:tables"], "metadata": {"contract": "v2"}, "tags": {"pii": "no"}},
            }
        ]
    }
    (folder / "defs.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    with sandbox.build_all_defs() as defs:
        graph = defs.resolve_asset_graph()
    table, counts = (graph.get(AssetKey(["words", uid])) for uid in ("table", "counts"))
    assert (table.owners, table.tags["pii"], table.metadata["contract"]) == (["team:tables"], "no", "v2")
    assert table.metadata["flink/uid"] == "table"
    assert not counts.owners
    assert counts.freshness_policy == FreshnessPolicy.cron("0 9 * * *", lower_bound_delta=timedelta(hours=1))


def test_links_lead_to_the_program_and_to_the_yaml(load: Any) -> None:
    (assets,) = load({}).assets
    (linked,) = with_source_code_references([assets])
    for spec in linked.specs:
        places = [Path(each.file_path).name for each in spec.metadata["dagster/code_references"].code_references]
        assert set(places) == {"pipeline.py", "defs.yaml"}
        assert places[-1] == "pipeline.py", "the function that builds the program"


def test_tables_only(load: Any) -> None:
    defs = load({"show": "tables", "checks": True})
    assert {key.path[-1] for key in defs.resolve_all_asset_keys()} == {"words", "table"}
    assert {key.asset_key.path[-1] for key in defs.resolve_asset_graph().asset_check_keys} == {"words", "table"}
    assert "words_savepoint" in names(defs.jobs)


def test_sensors_jobs_and_checks_take_their_settings(load: Any) -> None:
    defs = load(
        {
            "checkpoint_interval": "90 s",
            "sensors": {
                "checkpoint": {"min_pause": "5 s", "minimum_interval_seconds": 7, "default_status": "RUNNING"},
                "job_status": True,
                "restart": {"strategy": {"type": "fixed-delay", "attempts": 3, "delay": "10 s"}},
                "savepoint": {"interval": "1 d", "format_type": "NATIVE"},
                "retention": {"savepoint_days": 30, "keep_runs": 500},
            },
            "checks": {"max_lag": "1 h"},
        }
    )
    checkpoint = defs.resolve_sensor_def("words_checkpoint_sensor")
    assert checkpoint.minimum_interval_seconds == 7
    assert checkpoint.default_status == DefaultSensorStatus.RUNNING
    assert defs.resolve_sensor_def("words_restart_sensor").minimum_interval_seconds == 15
    assert names(defs.sensors) == {
        "words_checkpoint_sensor",
        "words_checkpoint_sensor_on_when_started",
        "words_checkpoint_sensor_off_when_failure",
        "words_checkpoint_sensor_off_when_canceled",
        "words_restart_sensor",
        "words_savepoint_sensor",
        "words_retention_sensor",
    }
    sweeps = defs.resolve_sensor_def("words_retention_sensor").evaluate_tick(build_sensor_context()).run_requests
    assert sweeps is not None
    swept = sweeps[0].run_config["ops"]["sweep_words"]["config"]
    assert (swept["savepoint_days"], swept["keep_runs"]) == (30, 500)
    assert "words_savepoint" in names(defs.jobs)
    [spec] = [s for s in defs.resolve_all_asset_specs() if s.key.path[-1] == "counts"]
    assert spec.metadata["flink/checkpoint_interval_ms"] == 90_000
    assert "lag" in {key.name for key in defs.resolve_asset_graph().asset_check_keys}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"type": "fixed-delay", "attempts": 3, "delay": "10 s"}, "FixedDelayRestart(attempts=3, delay=0:00:10)"),
        (
            {"type": "failure-rate", "interval": "1 h"},
            "FailureRateRestart(max_failures_per_interval=1, interval=1:00:00, delay=0:00:01)",
        ),
        (
            {"type": "exponential-delay", "max_backoff": "5 min"},
            "ExponentialDelayRestart(initial_backoff=0:00:01, max_backoff=0:05:00, backoff_multiplier=1.5, "
            "jitter_factor=0.1, reset_backoff_threshold=1:00:00, attempts_before_reset_backoff=None)",
        ),
    ],
)
def test_restart_strategies(strategy: dict[str, Any], expected: str) -> None:
    component = attributes(sensors={"restart": {"strategy": strategy}})
    assert component.sensors.restart is not None
    found = component.sensors.restart.strategy
    fields = ", ".join(f"{name}={value}" for name, value in vars(found).items())
    assert f"{type(found).__name__}({fields})" == expected


def test_a_supervised_job(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []

    def build(assets: Any, **options: Any) -> Any:
        built.append(options)
        return build_supervising_sensor(assets, **options)

    monkeypatch.setattr(pipeline_component, "build_supervising_sensor", build)
    settings = {"max_runtime": "1 d", "strategy": {"type": "fixed-delay"}, "default_status": "RUNNING"}
    defs = load({"sensors": {"supervising": settings}})
    sensor = defs.resolve_sensor_def("words_supervising_sensor")
    assert sensor.default_status == DefaultSensorStatus.RUNNING
    assert built[0]["tags"] == {"dagster/max_runtime": "86400.0"}
    assert type(built[0]["strategy"]).__name__ == "FixedDelayRestart"


def attributes(**given: Any) -> FlinkPipelineComponent:
    """Returns a component with these attributes, without a file."""
    env = "tests.orchestration.programs:word_count"
    return FlinkPipelineComponent.from_attributes_dict(attributes={"name": "words", "env": env, **given})


def test_partitions(load: Any) -> None:
    defs = load(
        {
            "partitions_def": {"type": "monthly", "start_date": "2024-01-01", "end_date": "2024-06-01"},
            "partition_retention": {"every": None, "last": 3},
            "max_partitions_per_run": 2,
            "sensors": {},
        },
        PARTITIONED,
    )
    [assets] = defs.assets
    assert assets.partitions_def == MonthlyPartitionsDefinition("2024-01-01", end_date="2024-06-01")
    assert assets.backfill_policy == BackfillPolicy.multi_run(2)


def test_assets_are_translated(load: Any) -> None:
    defs = load(
        {
            "group_name": "demo",
            "owners": ["team:data"],
            "tags": {"tier": "gold"},
            "deps": {"words": ["raw/words"]},
            "pool": "words",
            "translation": {"key": "lake/{{ uid }}", "tags": {"kind": "{{ data.vertex.spec.kind }}"}},
        }
    )
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert set(specs) >= {"lake/words", "lake/counts", "lake/table"}
    assert [dep.asset_key for dep in specs["lake/words"].deps] == [AssetKey(["raw", "words"])]
    assert [dep.asset_key for dep in specs["lake/table"].deps] == [AssetKey(["lake", "counts"])]
    table = specs["lake/table"]
    assert (table.group_name, table.owners) == ("demo", ["team:data"])
    assert table.tags.items() >= {"tier": "gold", "kind": "sink"}.items()
    assert defs.assets[0].op.pool == "words"


def test_a_subclass_may_translate_in_python() -> None:
    class Mine(FlinkPipelineComponent):
        def get_asset_spec(self, data: FlinkOperatorData) -> Any:
            return super().get_asset_spec(data).replace_attributes(key=AssetKey(data.vertex.uid))

    env = "tests.orchestration.programs:word_count"
    given = {"name": "words", "env": env, "arguments": {"table": "/tmp/none", "words": ["a"]}}
    defs = Mine.from_attributes_dict(attributes=given).build_defs(None)  # type: ignore[arg-type]
    assert {key.to_user_string() for each in defs.assets or [] for key in each.keys} == {"words", "count", "table"}  # type: ignore[union-attr]


def story_of(load: Any, given: dict[str, Any]) -> str:
    """Returns the text of an error and its cause. Dagster wraps the cause in an error with a tree of components."""
    with pytest.raises(Exception) as caught:
        load(given)
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": "pipeline"}, "write 'package.module:function'"),
        ({"env": ".pipeline:Nothing"}, "has no 'Nothing'"),
        ({"env": ".missing:pipeline"}, "No module named"),
        ({"checkpoint_interval": "soon"}, "not a duration: 'soon'"),
        ({"partition_retention": {"every": 0}}, "every=0 must be at least 1"),
        (
            {"sensors": {"restart": {"strategy": {"type": "fixed-delay", "attempts": -1}}}},
            "attempts must be at least 0",
        ),
        ({"sensors": {"checkpiont": True}}, "checkpiont"),
        ({"max_partitions_per_run": 0}, "greater than or equal to 1"),
    ],
)
def test_errors_say_where_in_the_file(load: Any, given: dict[str, Any], said: str) -> None:
    story = story_of(load, given)
    assert said in story
    assert re.search(r"defs\.yaml:\d+", story)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sensors": {"job_status": True}}, "which is off"),
        ({"sensors": {"savepoint": {"interval": "1 d"}}, "jobs": False}, "set jobs: true"),
        ({"deps": {"counts": ["raw"]}}, "not a source of the program"),
        ({"sensors": {"restart": True, "supervising": True}}, "turn sensors.restart off"),
    ],
)
def test_what_does_not_fit_together_is_refused(load: Any, given: dict[str, Any], said: str) -> None:
    story = story_of(load, given)
    assert said in story
    assert "defs.yaml (FlinkPipelineComponent) (error)" in story


def test_dagster_finds_the_component_and_its_scaffolder() -> None:
    """Uses the entry point of the installed distribution, like `dg list components` and `dg scaffold defs`."""
    found = discover_entry_point_package_objects()
    key = EnvRegistryKey("dagster_flinkpy", "FlinkPipelineComponent")
    assert found[key] is FlinkPipelineComponent
    assert is_scaffoldable_object_key(key)


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(ValidationError, match="colour"):
        attributes(colour="red")


# --- scaffolder, example ----------------------------------------------------------------------------------------------


def test_the_example_is_what_the_scaffolder_writes(sandbox: DefsFolderSandbox) -> None:
    folder = sandbox.scaffold_component(FlinkPipelineComponent, "word_count")
    made = {"word_count/pipeline.py", "word_count/defs.yaml", "resources.py"}
    for file in made:
        expected = (EXAMPLE / "src/word_counts/defs" / file).read_text()
        found = (folder.parent / file).read_text()
        assert found.replace(f"{FlinkPipelineComponent.__module__}.", "dagster_flinkpy.") == expected


def test_scaffolding_leaves_resources_alone(sandbox: DefsFolderSandbox) -> None:
    sandbox.scaffold_component(FlinkPipelineComponent, "one", {"resources": False})
    resources = sandbox.defs_folder_path / "resources.py"
    assert not resources.exists()
    resources.write_text("mine = 1\n")
    sandbox.scaffold_component(FlinkPipelineComponent, "two-b")
    assert resources.read_text() == "mine = 1\n"
    assert "name: two_b\n" in (sandbox.defs_folder_path / "two-b" / "defs.yaml").read_text()


def test_a_pipeline_in_a_folder_of_folders_has_the_resources_of_all(sandbox: DefsFolderSandbox) -> None:
    for folder in ("team/one", "two"):
        sandbox.scaffold_component(FlinkPipelineComponent, folder)
    assert [*sandbox.defs_folder_path.rglob("resources.py")] == [sandbox.defs_folder_path / "resources.py"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Definitions]:
    """Copies the example project, so that its state and tables are in the test's folder."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", "tables"))
    monkeypatch.syspath_prepend(str(project / "src"))
    before = set(sys.modules)
    yield load_from_defs_folder(path_within_project=project / "src" / "word_counts")
    for module in {name for name in sys.modules if name.partition(".")[0] == "word_counts"} - before:
        del sys.modules[module]


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_the_example_runs(example: Definitions, instance: DagsterInstance, tmp_path: Path) -> None:
    job = example.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process({"ops": {"word_count": {"config": {"epochs": 0}}}}, instance).success
    rows = [
        row for file in (tmp_path / "project/tables").glob("**/*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    assert sorted((row["word"], row["count"]) for row in rows) == [
        ("be", 1),
        ("be", 2),
        ("not", 1),
        ("or", 1),
        ("to", 1),
        ("to", 2),
    ]
    assert (tmp_path / "project/checkpoints/word_count/HEAD").exists()
