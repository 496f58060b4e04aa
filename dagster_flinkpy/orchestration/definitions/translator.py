"""Turns operators into assets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster import AssetDep, AssetKey, AssetSpec

from dagster_flinkpy.checkpoint.operator_program import operator_code_version
from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.connectors.tables import ReadableTable
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import CoercibleToAssetDep, TableMetadataSet, UriMetadataSet
from dagster_flinkpy.orchestration.definitions.columns import ColumnLineage, column_metadata
from dagster_flinkpy.orchestration.definitions.operator_attributes import OperatorAttributes
from dagster_flinkpy.orchestration.definitions.shown_operators import Show, ShownOperators
from dagster_flinkpy.orchestration.definitions.user_code import code_references, docstring, user_functions
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_assets import JobAssets, is_internal, refuse_other_partitions
from dagster_flinkpy.orchestration.metadata_set import FlinkMetadataSet

__all__ = ["FlinkOperatorData", "FlinkTranslator", "job_assets"]

_MOST_KINDS = 3  # Dagster's limit


@dataclass(frozen=True)
class FlinkOperatorData:
    """What is known about an operator when its asset spec is created."""

    name: str
    """As passed to `flink_assets`."""
    job: FlinkJob
    vertex: JobVertex
    upstream: tuple[AssetKey | AssetDep, ...]
    """Assets that it reads from, directly or through hidden operators; for a source, those named in ``deps``. An
    `AssetDep` is one that ``deps`` names with a partition mapping."""
    attributes: OperatorAttributes = field(default_factory=OperatorAttributes)
    """Its own ones, and those of all assets of the job."""
    columns: TableMetadataSet = field(default_factory=TableMetadataSet)
    """Columns of its records and their lineage, as far as they are known for certain."""
    hidden: tuple[JobVertex, ...] = ()
    """Operators without an asset, whose numbers are in the metadata of this one."""


class FlinkTranslator:
    """Creates the asset spec of each operator. Override `get_asset_spec` to change keys, deps, groups or owners.

    Examples:
        Prefix the asset keys, and depend on the asset that writes the input:

        .. code-block:: python

            from dagster import AssetDep, AssetKey, AssetSpec
            from dagster_flinkpy.orchestration import FlinkOperatorData, FlinkTranslator

            class ShopTranslator(FlinkTranslator):
                def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
                    spec = super().get_asset_spec(data)
                    if data.vertex.uid == "orders":
                        spec = spec.replace_attributes(deps=[AssetKey("raw_orders")])
                    return spec.replace_attributes(key=AssetKey(["shop", *spec.key.path]))
    """

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        """Returns the asset spec of an operator. Its key is ``[name, uid]``."""
        vertex, job = data.vertex, data.job
        interval = job.checkpointing.interval
        sink = vertex.spec.sink if isinstance(vertex.spec, SinkSpec) else None
        types = {edge.type_info for edge in job.graph.inputs(vertex.uid)}
        form = sink.form if isinstance(sink, ReadableTable) and len(types) == 1 else None
        record_type = None if form is None else json.dumps(types.pop().to_json())
        return AssetSpec(
            key=AssetKey([data.name, vertex.uid]),
            deps=data.upstream,
            description=_description(vertex),
            # At the end of the input there is no checkpoint, so nothing is materialized.
            skippable=True,
            group_name=data.attributes.group_name,
            owners=data.attributes.owners,
            tags=data.attributes.tags,
            freshness_policy=data.attributes.freshness_policy,
            automation_condition=data.attributes.automation_condition,
            code_version=_code_version(data),
            kinds=_kinds(vertex),
            metadata={
                **FlinkMetadataSet(
                    job_id=job.job_id,
                    uid=vertex.uid,
                    kind=vertex.spec.kind,
                    parallelism=vertex.parallelism,
                    max_parallelism=vertex.max_parallelism,
                    checkpoint_interval_ms=None if interval is None else to_millis(interval),
                    checkpoint_min_pause_ms=to_millis(job.checkpointing.min_pause) or None,
                    record_type=record_type,
                    table_format=None if form is None else form.format,
                    partition_column=None if form is None else form.partition_column,
                ),
                **UriMetadataSet(uri=None if sink is None else sink.uri()),
                **data.columns,
                **code_references([vertex, *(hidden for hidden in data.hidden if not is_internal(hidden))]),
                **data.attributes.metadata,
            },
        )


def job_assets(
    job: FlinkJob,
    *,
    name: str,
    show: Show,
    translator: FlinkTranslator | None,
    attributes: OperatorAttributes | None = None,
    operators: Mapping[str, OperatorAttributes] | None = None,
    deps: Mapping[str, Sequence[CoercibleToAssetDep]] | None = None,
) -> JobAssets:
    """Returns the assets of a job.

    Raises:
        ConfigurationError: ``deps`` names an operator that is not a source of the program, ``operators`` one that is
            not an asset, ``show`` is neither of its values, or the translator gives an asset partitions.
    """
    translator, own, of_all = translator or FlinkTranslator(), operators or {}, attributes or OperatorAttributes()
    outside, shown = _outside(job, deps or {}), ShownOperators(job.graph, show)
    if unknown := sorted(own.keys() - shown.hidden.keys()):
        raise ConfigurationError(
            f"operators names {', '.join(map(repr, unknown))}, which is not an asset of the job. Its assets are those "
            f"of {sorted(shown.hidden)}"
        )
    lineage = ColumnLineage(job.graph, shown.hidden)
    specs: dict[str, AssetSpec] = {}
    for uid, among in shown.hidden.items():
        upstream = (*(specs[source].key for source in shown.upstream[uid]), *outside.get(uid, ()))
        origins = {c: [(specs[of].key, name) for of, name in found] for c, found in lineage.of(uid).items()}
        columns, vertex = column_metadata(job.graph, uid, origins), job.graph.vertex(uid)
        has = own.get(uid, OperatorAttributes()).over(of_all)
        data = FlinkOperatorData(name, job, vertex, upstream, has, columns, among)
        specs[uid] = translator.get_asset_spec(data)
        refuse_other_partitions(specs[uid], None)
    return JobAssets(job, specs, shown.hidden)


def _outside(job: FlinkJob, deps: Mapping[str, Sequence[CoercibleToAssetDep]]) -> dict[str, list[AssetKey | AssetDep]]:
    """Returns the assets that sources read, by the sources' uids."""
    sources = [v.uid for v in job.graph.sources]
    check_argument(
        "deps", deps, Mapping, "a dict from the uid of a source to assets, such as {'orders': ['raw_orders']}"
    )
    for uid, read in deps.items():
        if isinstance(read, str) or not isinstance(read, Sequence):  # the letters of a name would be assets
            raise ConfigurationError(f"deps of {uid!r} needs a list of assets, such as [{read!r}], not {read!r}")
    if unknown := sorted(deps.keys() - set(sources)):
        raise ConfigurationError(
            f"deps names {', '.join(map(repr, unknown))}, which is not a source of the program. "
            f"Its sources are {sorted(sources)}"
        )
    outside = {uid: [_upstream(each) for each in assets] for uid, assets in deps.items()}
    for vertex in job.graph.sources:
        paths = vertex.spec.source.upstream_assets() if isinstance(vertex.spec, SourceSpec) else ()
        named = outside.setdefault(vertex.uid, []) if paths else []
        for key in (AssetKey(list(path)) for path in paths):
            if key not in [each.asset_key if isinstance(each, AssetDep) else each for each in named]:
                named.append(key)
    return outside


def _code_version(data: FlinkOperatorData) -> str:
    """A hash of the operator, and of the hidden operators that the user has written."""
    operators = [data.vertex, *(vertex for vertex in data.hidden if not is_internal(vertex))]
    versions = [operator_code_version(data.job.graph, vertex.uid) for vertex in operators]
    return versions[0] if len(versions) == 1 else hashlib.sha256(" ".join(versions).encode()).hexdigest()[:12]


def _kinds(vertex: JobVertex) -> set[str]:
    spec, own = vertex.spec, set[str]()
    if isinstance(spec, SourceSpec):
        own = spec.source.kinds()
    elif isinstance(spec, SinkSpec):
        own = spec.sink.kinds()
    return set(["flink", "spark", *sorted(own)][:_MOST_KINDS])


def _description(vertex: JobVertex) -> str:
    if vertex.description:
        return vertex.description
    written = (text for function in user_functions(vertex) if (text := docstring(function)))
    return next(written, f"{vertex.name} ({vertex.spec.kind.replace('_', ' ')})")


def _upstream(asset: CoercibleToAssetDep) -> AssetKey | AssetDep:
    """Returns the key of whatever Dagster's own ``deps`` take: a key, an asset or a spec; or a dep that has more."""
    if isinstance(asset, AssetDep):
        return asset.asset_key if asset.partition_mapping is None else asset
    return AssetDep(list(asset) if type(asset) is tuple else asset).asset_key  # keys and specs are tuples, too
