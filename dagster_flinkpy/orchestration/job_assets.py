"""The assets of a job, and whose numbers they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, AssetSelection, AssetSpec, define_asset_job

from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, BlockingEdgeSourceSpec, SparkTransformSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, FlinkJob, dagster_name

__all__ = ["JobAssets", "asset_job", "is_internal", "job_of", "of_job"]

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

    def shown_by(self, uid: str) -> str:
        """Returns the uid of the operator whose asset has the checks of an operator.

        Args:
            uid: Uid of any operator of the job. If several assets show a hidden operator, the first has its checks.
        """
        if uid in self.specs:
            return uid
        return next(shown for shown, hidden in self.hidden.items() if uid in [vertex.uid for vertex in hidden])
