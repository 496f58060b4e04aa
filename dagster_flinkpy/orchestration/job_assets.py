"""The assets of a job, and whose numbers they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, AssetSelection, AssetSpec, PartitionsDefinition, define_asset_job

from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    SourceSpec,
    SparkTransformSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, FlinkJob, dagster_name

__all__ = ["JobAssets", "asset_job", "is_internal", "job_of", "of_job", "refuse_other_partitions"]

_jobs: WeakKeyDictionary[object, FlinkJob] = WeakKeyDictionary()
"""By the op of its step, which assets keep when Dagster copies them with other keys or attributes."""


def of_job(assets: AssetsDefinition, job: FlinkJob) -> AssetsDefinition:
    """Notes of which job assets are, for `job_of`, and returns them."""
    _jobs[assets.node_def] = job
    return assets


def job_of(assets: AssetsDefinition) -> FlinkJob | None:
    """Returns the job whose assets these are. None if they are not what ``flink_assets`` has returned."""
    return _jobs.get(assets.node_def)


@lru_cache(None)
def asset_job(job_id: str, keys: frozenset[AssetKey], suffix: str, description: str) -> UnresolvedAssetJobDefinition:
    """Returns the asset job ``{job}_{suffix}``, with the checks of the assets. Its runs have the tag of the job."""
    # A sensor and a list of jobs may both have it. Dagster takes two of one name only if they are the same object.
    return define_asset_job(
        f"{dagster_name(job_id)}_{suffix}",
        AssetSelection.assets(*sorted(keys)),
        description=description,
        tags={JOB_TAG: job_id},
    )


def is_internal(vertex: JobVertex) -> bool:
    """Whether an operator is an end of a blocking edge, which the user has not written."""
    edge_end = isinstance(vertex.spec, (BlockingEdgeSinkSpec, BlockingEdgeSourceSpec))
    return edge_end and not isinstance(vertex.spec, SparkTransformSpec)


def refuse_other_partitions(spec: AssetSpec, known: PartitionsDefinition | None) -> None:
    """Refuses partitions that somebody has given an asset of a job behind the job's back.

    A run of one of them would read all new input, and Dagster would show that as the data of its partition.

    Args:
        spec: The asset.
        known: The partitions that the job knows.

    Raises:
        ConfigurationError: The asset has others.
    """
    if spec.partitions_def != known:
        what = "no partitions_def" if spec.partitions_def is None else f"a {type(spec.partitions_def).__name__}"
        raise ConfigurationError(
            f"asset {spec.key.to_user_string()!r} has {what}, of which its job does not know: a run would not read the "
            "input of its partition. Partitions are an argument of flink_assets(partitions_def=...), or an attribute "
            "of the component; a translator, map_asset_specs or post_processing cannot change them."
        )


@dataclass(frozen=True)
class JobAssets:
    """The assets of a job. Each belongs to an operator; there may be hidden operators without an asset."""

    job: FlinkJob
    specs: Mapping[str, AssetSpec]
    """By uid of the operator, in topological order."""
    hidden: Mapping[str, tuple[JobVertex, ...]]
    """By uid of an asset's operator: the hidden operators whose numbers the asset shows."""

    @property
    def keys(self) -> list[AssetKey]:
        """The keys of the assets."""
        return [spec.key for spec in self.specs.values()]

    @property
    def first(self) -> str:
        """The uid of the operator whose asset also has the tables of the whole job."""
        return next(iter(self.specs))

    def as_defined(self, assets: AssetsDefinition) -> JobAssets:
        """Returns the assets with the keys and dependencies that they have in a code location.

        Dagster may have given them others, as ``load_assets_from_modules(key_prefix=...)`` does.

        Args:
            assets: The same assets, as Dagster runs them.

        Raises:
            ConfigurationError: An asset that a source reads has another key there, so it would never find anything. Or
                an asset of the job has other partitions there.
        """
        keys, specs = assets.node_keys_by_output_name, assets.specs_by_key
        # Dagster names the outputs of the step by the first keys, and leaves them as they are.
        here = {uid: specs[keys[spec.key.to_python_identifier()]] for uid, spec in self.specs.items()}
        for uid, spec in self.specs.items():
            refuse_other_partitions(here[uid], spec.partitions_def)
            before, now = [dep.asset_key for dep in spec.deps], [dep.asset_key for dep in here[uid].deps]
            if len(now) == len(before):  # in the same order, unless somebody has written others
                self._refuse_renamed(uid, dict(zip(before, now, strict=True)))
        return replace(self, specs=here)

    def _refuse_renamed(self, uid: str, keys: Mapping[AssetKey, AssetKey]) -> None:
        for vertex in (self.job.graph.vertex(uid), *self.hidden[uid]):
            for path in vertex.spec.source.upstream_assets() if isinstance(vertex.spec, SourceSpec) else ():
                read = AssetKey(list(path))
                if (now := keys.get(read, read)) != read:
                    raise ConfigurationError(
                        f"source {vertex.uid!r} reads asset {read.to_user_string()!r}, whose key in this code location "
                        f"is {now.to_user_string()!r}, as after load_assets_from_modules(key_prefix=...): it would "
                        f"find nothing, ever. Write AssetSource({now.to_user_string()!r}, ...) in the program."
                    )

    def shown_by(self, uid: str) -> str:
        """Returns the uid of the operator whose asset has the checks of an operator.

        Args:
            uid: Uid of any operator of the job. If several assets show a hidden operator, the first has its checks.
        """
        if uid in self.specs:
            return uid
        return next(shown for shown, hidden in self.hidden.items() if uid in [vertex.uid for vertex in hidden])
