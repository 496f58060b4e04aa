"""``dg scaffold defs dagster_flinkpy.FlinkPipelineComponent my_pipeline``: writes a small program, ready to run."""

from __future__ import annotations

import re
from pathlib import Path

from dagster import Scaffolder, ScaffoldRequest
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

__all__ = ["FlinkPipelineScaffoldParams", "FlinkPipelineScaffolder"]

_PIPELINE = '''"""A word count: how often each word has been seen so far. Replace it with your own program."""

from collections.abc import Iterator

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.state import ValueStateDescriptor

COUNTS = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    """Counts how often each word has been seen so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value, count


def pipeline(table: str) -> StreamExecutionEnvironment:
    """Builds the program. Dagster calls it when it loads the code, so it must not read data or use Spark."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    lines = CollectionSource(["to", "be", "or", "not", "to", "be"], Types.STRING(), records_per_epoch=3)
    words = env.from_source(lines, WatermarkStrategy.no_watermarks(), "words").uid("words")
    counts = words.key_by(lambda word: word, Types.STRING()).process(Count(), COUNTS).uid("counts")
    counts.sink_to(ParquetSink(table)).uid("table")
    return env
'''

_RESOURCES = '''"""The Spark that runs the pipelines, and the storage of their state."""

from pathlib import Path

import dagster as dg
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource

PROJECT = Path(__file__).parents[{depth}]


@dg.definitions
def resources() -> dg.Definitions:
    return dg.Definitions(
        resources={{
            "spark": SparkResource(),
            "checkpoint_storage": CheckpointStorageResource(url=str(PROJECT / "checkpoints")),
        }}
    )
'''


class FlinkPipelineScaffoldParams(BaseModel):
    """The options of the command."""

    resources: bool = Field(
        default=True, description="Whether to write resources.py in the folder of all definitions, if there is none."
    )


class FlinkPipelineScaffolder(Scaffolder[FlinkPipelineScaffoldParams]):
    """Writes ``defs.yaml`` and ``pipeline.py``, and ``resources.py`` in the folder ``defs`` if there is none yet."""

    @classmethod
    def get_scaffold_params(cls) -> type[FlinkPipelineScaffoldParams]:
        return FlinkPipelineScaffoldParams

    def scaffold(self, request: ScaffoldRequest[FlinkPipelineScaffoldParams]) -> None:
        """Writes the files."""
        folder = request.target_path.parent if request.append else request.target_path
        name = re.sub(r"\W", "_", folder.name, flags=re.ASCII)
        scaffold_component(
            request,
            {
                "name": name,
                "env": ".pipeline:pipeline",
                "arguments": {"table": f"{{{{ context.project_root }}}}/tables/{name}"},
                "checkpoint_interval": "1 min",
                "sensors": {"checkpoint": True},
            },
        )
        _write(folder / "pipeline.py", _PIPELINE)
        if request.params.resources:
            root = request.project_root or Path.cwd()
            # Two such files in the folders of all definitions would be two resources of one key: Dagster refuses those.
            tops = [each for each in folder.parents if each.name == "defs" and root.resolve() in each.resolve().parents]
            resources = (tops[-1] if tops else folder.parent) / "resources.py"
            inside = resources.resolve().is_relative_to(root.resolve())
            depth = len(resources.resolve().relative_to(root.resolve()).parts) - 1 if inside else 0
            _write(resources, _RESOURCES.format(depth=depth))


def _write(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, encoding="utf-8")
