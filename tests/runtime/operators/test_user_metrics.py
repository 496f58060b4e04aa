from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, MapFunction, RuntimeContext
from tests.runtime.harness import collect_all, collect_graph, make_job, run_epoch
from tests.runtime.programs import environment, events


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group()
        self.odd = group.add_group("odd").counter("records_in")
        self.values = group.distribution("values")

    def map(self, value: Any) -> Any:
        self.values.update(value.value)
        if value.value % 2:
            self.odd.inc()
        return value.key


class Gauged(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen: set[str] = set()
        runtime_context.get_metrics_group().gauge("keys", lambda: len(self.seen))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.seen.add(value)


def test_metrics_of_functions_are_acknowledged_beside_those_of_the_task(tmp_path: Path) -> None:
    stream = events(environment(), [("a", 1, 3), ("b", 2, 4), ("a", 3, 5)])
    counted = stream.map(Measured(), Types.STRING()).uid("measured").key_by(lambda v: v).process(Gauged()).uid("gauged")
    states = run_epoch(make_job(collect_graph(counted), tmp_path)).states
    measured = states[Subtask("measured", 0)].metrics
    assert measured["records_in"] == 3
    assert measured["user.odd.records_in"] == 2
    assert {k: v for k, v in measured.items() if "values" in k and not k.startswith("user_bucket.")} == {
        "user.values.count": 3,
        "user.values.sum": 12,
        "user_min.values.min": 3,
        "user_max.values.max": 5,
    }
    assert states[Subtask("gauged", 0)].metrics["user_max.keys"] == 2


class Context(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.about = (
            runtime_context.get_task_name(),
            runtime_context.get_task_name_with_subtasks(),
            runtime_context.get_job_parameter("limit", "none"),
            runtime_context.get_job_parameter("other", "none"),
            runtime_context.get_max_number_of_parallel_subtasks(),
            runtime_context.get_attempt_number(),
        )

    def map(self, value: Any) -> Any:
        return self.about


def test_functions_know_their_task_and_the_parameters_of_the_job(tmp_path: Path) -> None:
    env = environment()
    env.get_config().set_global_job_parameters({"limit": 3})
    stream = events(env, [("a", 1, 1)]).map(Context()).name("About").uid("about")
    assert collect_all(stream, tmp_path) == [("About", "About (1/1)", "3", "none", 16, 0)]
