"""How an operator becomes an asset."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster import AssetKey, AssetSpec
from dagster._core.definitions.events import CoercibleToAssetKey
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet

from dagster_flinkpy.datastream.job_graph import JobVertex
from dagster_flinkpy.datastream.operators import ExchangeSourceSpec, SinkSpec, SourceSpec
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.code_version import operator_code_version
from dagster_flinkpy.orchestration.columns import column_metadata
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.metadata_set import FlinkMetadataSet

__all__ = ["FlinkOperatorData", "FlinkTranslator", "operator_specs"]

_MOST_KINDS = 3  # a rule of Dagster


@dataclass(frozen=True)
class FlinkOperatorData:
    """What is known of an operator when its asset is made."""

    name: str
    """As given to `flink_assets`."""
    job: FlinkJob
    vertex: JobVertex
    upstream: tuple[AssetKey, ...]
    """Assets of the operators it reads from; of a source, those named with ``deps``."""
    group_name: str | None = None
    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    columns: TableMetadataSet = field(default_factory=TableMetadataSet)
    """Columns of its records and where they come from, as far as that is certain."""


class FlinkTranslator:
    """Override `get_asset_spec` to change keys, dependencies, groups, owners and the like."""

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        """The asset of an operator; its key is ``[name, uid]``."""
        vertex, job = data.vertex, data.job
        interval = job.checkpointing.interval
        return AssetSpec(
            key=AssetKey([data.name, vertex.uid]),
            deps=data.upstream,
            description=_description(vertex),
            # An epoch that finds the input at its end makes no checkpoint, and so materializes nothing.
            skippable=True,
            group_name=data.group_name,
            owners=data.owners,
            tags=data.tags,
            code_version=operator_code_version(job.graph, vertex.uid),
            kinds=_kinds(vertex),
            metadata={
                **FlinkMetadataSet(
                    job_id=job.job_id,
                    uid=vertex.uid,
                    kind=vertex.spec.kind,
                    parallelism=vertex.parallelism,
                    max_parallelism=vertex.max_parallelism,
                    checkpoint_interval_ms=None if interval is None else round(interval.total_seconds() * 1000),
                ),
                **data.columns,
            },
        )


def operator_specs(
    jobs: Sequence[FlinkJob],
    *,
    name: str,
    translator: FlinkTranslator,
    group_name: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    deps: Mapping[str, Sequence[CoercibleToAssetKey]] | None = None,
) -> list[dict[str, AssetSpec]]:
    """The assets of each job of a program, by uid, in topological order.

    Raises:
        ConfigurationError: ``deps`` names what is no source of the program.
    """
    outside = _outside(jobs, deps or {})
    all_specs: dict[str, AssetSpec] = {}
    for job in jobs:
        for vertex in job.graph.vertices:
            sources = dict.fromkeys(edge.source for edge in job.graph.inputs(vertex.uid))
            if isinstance(vertex.spec, ExchangeSourceSpec):
                sources[vertex.spec.source.sink_uid] = None  # of another job
            assets = {source: all_specs[source].key for source in sources}
            upstream = (*assets.values(), *outside.get(vertex.uid, ()))
            columns = column_metadata(job.graph, vertex.uid, assets)
            data = FlinkOperatorData(name, job, vertex, upstream, group_name, owners, tags or {}, columns)
            all_specs[vertex.uid] = translator.get_asset_spec(data)
    return [{v.uid: all_specs[v.uid] for v in job.graph.vertices} for job in jobs]


def _outside(jobs: Sequence[FlinkJob], deps: Mapping[str, Sequence[CoercibleToAssetKey]]) -> dict[str, list[AssetKey]]:
    """Assets that sources read, by their uid."""
    vertices = [vertex for job in jobs for vertex in job.graph.vertices]
    sources = [v.uid for v in vertices if isinstance(v.spec, SourceSpec) and not isinstance(v.spec, ExchangeSourceSpec)]
    if unknown := sorted(deps.keys() - set(sources)):
        raise ConfigurationError(
            f"deps names {', '.join(map(repr, unknown))}, which is no source of the program: it has {sorted(sources)}"
        )
    return {uid: [AssetKey.from_coercible(key) for key in keys] for uid, keys in deps.items()}


def _kinds(vertex: JobVertex) -> set[str]:
    spec, own = vertex.spec, set[str]()
    if isinstance(spec, SourceSpec):
        own = spec.source.kinds()
    elif isinstance(spec, SinkSpec):
        own = spec.sink.kinds()
    return set(["flink", "spark", *sorted(own)][:_MOST_KINDS])


def _description(vertex: JobVertex) -> str:
    for text in _docstrings(vertex):
        if text:
            return inspect.cleandoc(text).partition("\n\n")[0]
    return f"{vertex.name} ({vertex.spec.kind.replace('_', ' ')})"


def _docstrings(vertex: JobVertex) -> Iterable[str | None]:
    """Own docstrings of the user's functions, not those a class would inherit."""
    for function in vertex.spec.user_functions():
        if function is not None:
            yield (function if inspect.isroutine(function) else type(function)).__doc__
