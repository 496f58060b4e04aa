"""Names of the state files of tasks that live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph
from tests.runtime.programs import environment, events


class Same(KeyedProcessFunction):
    """Writes the same value again and again."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._value = runtime_context.get_state(ValueStateDescriptor("value", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self._value.update([value.time + index for index in range(20_000)] if value.value else None)
        yield value.key


def test_equal_contents_of_two_epochs_have_files_of_their_own(tmp_path: Path) -> None:
    records = [("a", 0, 1)] * 4
    keyed = events(environment(), records, per_epoch=1).key_by("key")
    graph = collect_graph(keyed.process(Same(), Types.STRING()).uid("same"))
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path)), exchange=options, in_process=True)
    with JobAttempt(graph, config, owner="test") as attempt:
        first, second = (attempt.run_epoch().metadata for _ in range(2))
    added = second.files() - first.files()
    assert first.files()
    assert added, "the content is the same, but a late deletion of the first file must not take it away"
    assert all(path.startswith(f"shared/{first.fencing_token}-{second.checkpoint_id}-") for path in added)
