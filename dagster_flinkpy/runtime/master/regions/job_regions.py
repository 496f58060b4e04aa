"""The regions of an execution attempt, with what they have in common: the input, the Spark session and the segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.checkpoint.reports.execution_report import InputReport
from dagster_flinkpy.checkpoint.restore import RestorePlan
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointTimeoutError, FlinkPyError
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeSegments
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.regions.region_epoch import Turn
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["JobRegions"]


class JobRegions:
    """Creates the planners and sessions of all regions."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        fencing_token: int,
        run_id: str | None,
        restored: CheckpointMetadata | None,
        plan: RestorePlan | None,
        session: SharedSession,
        watchdog: Watchdog,
        progress: Callable[[str], None],
    ) -> None:
        self.graphs = graph.regions()
        """The regions, each behind those whose output it reads."""
        self.sessions = tuple(JobSession(session) for _ in self.graphs)
        """The Spark jobs of each region."""
        self.planners = tuple(
            EpochPlanner(
                region,
                number,
                config,
                SplitEnumeratorContext(
                    config.job_id, fencing_token, partial(self.sessions[number].open, own=True), run_id, progress
                ),
                restored,
                plan,
            )
            for number, region in enumerate(self.graphs)
        )
        for planner in self.planners:
            planner.coordinators.guard = watchdog.run
        self._graph = graph
        self._segments = EdgeSegments(
            config.storage.child(config.job_id).child(EXCHANGE_FOLDER),
            [uid for planner in self.planners for uid in sorted(planner.edge_sinks)],
            fencing_token,
        )
        self._watchdog = watchdog

    @property
    def edges(self) -> dict[str, tuple[int, int]]:
        """The producer and the consumer of each blocking edge, by the uid of its source."""
        home = {uid: number for number, planner in enumerate(self.planners) for uid in planner.edge_sinks}
        return {
            uid: (home[sink], number)
            for number, planner in enumerate(self.planners)
            for uid, sink in planner.edge_sources.items()
        }

    @property
    def inputs(self) -> dict[str, tuple[InputReport, ...]]:
        """The edges into each operator, with the blocking ones."""
        found = dict[str, tuple[InputReport, ...]]()
        for graph, planner in zip(self.graphs, self.planners, strict=True):
            for v in graph.vertices:
                found[v.uid] = tuple(
                    InputReport(e.source, e.partitioner.kind.value, graph.is_chained(e)) for e in graph.inputs(v.uid)
                )
            found |= {uid: (InputReport(sink, "blocking", False),) for uid, sink in planner.edge_sources.items()}
        return found

    def states(self, graph: ExecutionGraph, turn: Turn) -> list[RegionState]:
        """Returns what the state of the job has of the regions; see :class:`RegionState` for the arguments."""
        regions: list[RegionState] = []
        for planner in self.planners:
            before = [region for region in regions if region.planner.edge_sinks & {*planner.edge_sources.values()}]
            regions.append(RegionState(planner, before, graph, turn))
        return regions

    def checkpoint_plan(self, sinks: Sequence[str], master_hooks: tuple[str, ...]) -> CheckpointPlan:
        """Returns who takes part in the checkpoints of the job."""
        tasks = {v.uid: tuple(Subtask(v.uid, i) for i in range(v.parallelism)) for v in self._graph.vertices}
        sources = tuple(uid for planner in self.planners for uid in planner.splits.uids)
        edges = tuple(uid for planner in self.planners for uid in planner.edge_sources)
        functions = tuple(uid for planner in self.planners for uid in planner.coordinators.uids)
        return CheckpointPlan(
            tasks_to_trigger=tuple(t for uid in sources for t in tasks[uid]),
            tasks_to_wait_for=tuple(t for each in tasks.values() for t in each),
            tasks_to_commit=tuple(t for uid in sinks for t in tasks[uid]),
            coordinators=(*sources, *edges, *functions),  # of edges: what was not read before the barrier
            master_hooks=master_hooks,
        )

    def discard_lingering(self, unnamed: Callable[[Collection[str]], Collection[str]]) -> None:
        """Deletes the segments of earlier attempts, see :meth:`EdgeSegments.discard_lingering`."""
        if self._segments:
            self._watchdog.run("deleting the segments of earlier attempts", self._segments.discard_lingering, unnamed)

    def discard_read(self, written: Mapping[str, Collection[int]], named: Collection[str]) -> None:
        """Deletes segments that were read before a barrier, see :meth:`EdgeSegments.discard_read`."""
        with suppress(CheckpointTimeoutError):  # the next attempt deletes what remains
            self._watchdog.run("deleting segments that were read", self._segments.discard_read, written, named)

    def close(self) -> None:
        """Closes the enumerators and the coordinators. One that raises is not heard: all is committed."""
        for planner in self.planners:
            with suppress(FlinkPyError):
                self._watchdog.run("closing sources", planner.splits.close)
            with suppress(FlinkPyError):
                planner.coordinators.close()
