"""Finds out whether a run of a job that nobody works on would find anything to do. Starts and changes nothing."""

from __future__ import annotations

from contextlib import closing

from dagster_flinkpy.checkpoint.kept_parallelism import settle_parallelism
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import without_committed
from dagster_flinkpy.checkpoint.reports.in_flight import has_in_flight
from dagster_flinkpy.checkpoint.requests import JobRequests
from dagster_flinkpy.checkpoint.restore import assign, restore_targets
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSourceSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.runtime.failure import raised_on_driver
from dagster_flinkpy.runtime.master.epochs.split_planner import create_enumerator
from dagster_flinkpy.state.handles import PROCESSING_TIMERS
from dagster_flinkpy.state.reader import read_rows
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["WaitingInput"]


class WaitingInput:
    """Looks at a job from outside, again and again. It remembers what cannot change: the timers of a checkpoint."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._timers: tuple[int, int, int | None] | None = None
        """Of a checkpoint, by its id and attempt: the time of its first processing-time timer."""

    def find(self, job: StorageLocation, now_ms: int) -> str | None:
        """Returns what a run would find to do, in words for people; None if nothing.

        Raises:
            FlinkPyError: A source cannot be asked, or a run could not begin.
        """
        store = job.open()
        if waiting := JobRequests(job, "a look for input").waiting():
            return f"{waiting[0].owner} asks for a {waiting[0].order.kind.value}"
        checkpoints = CompletedCheckpointStore(store)
        latest, leader = checkpoints.latest(), checkpoints.leader()
        if latest is not None:
            if leader is not None and (leader.committed or 0) < latest.checkpoint_id:
                return f"checkpoint {latest.checkpoint_id} is not committed"
            if (left := self._left_in(latest)) is not None:
                return left
            latest = without_committed(latest, self._graph, None if leader is None else leader.committed)
        positions = self._positions(latest)
        for uid, parallelism, restored in positions:
            if (found := self._of_source(uid, parallelism, restored)) is not None:
                return found
        first = None if latest is None else self._first_timer(latest, store)
        return None if first is None or first >= now_ms else "a processing-time timer is due"

    def _left_in(self, latest: CheckpointMetadata) -> str | None:
        """Returns what a checkpoint has not finished."""
        if has_in_flight(latest):
            return f"checkpoint {latest.checkpoint_id} has records in flight"
        # Sources are idle in an epoch that reads nothing, so nobody waits for the slowest of them any more.
        if self._has_idleness and any(subtask.splits for o in latest.operators for subtask in o.subtasks):
            return "event time goes on when all sources are idle"
        return None

    @property
    def _has_idleness(self) -> bool:
        strategies = (getattr(vertex.spec, "watermark_strategy", None) for vertex in self._graph.vertices)
        return any(strategy is not None and strategy.idle_timeout is not None for strategy in strategies)

    def _positions(self, latest: CheckpointMetadata | None) -> list[tuple[str, int, Json | None]]:
        """Returns the sources, each with its parallelism and the position from which a run would continue."""
        graph, restored = self._graph, dict[str, Json | None]()
        if latest is not None:
            graph = settle_parallelism(graph, latest, None).graph
            plan = assign(latest, restore_targets(graph))
            restored = {uid: each.coordinator_state for uid, each in plan.operators.items() if each.restored}
        return [
            (vertex.uid, vertex.parallelism, restored.get(vertex.uid))
            for vertex in graph.vertices
            if isinstance(vertex.spec, SourceSpec) and not isinstance(vertex.spec, BlockingEdgeSourceSpec)
        ]

    def _of_source(self, uid: str, parallelism: int, restored: Json | None) -> str | None:
        spec = self._graph.vertex(uid).spec
        assert isinstance(spec, SourceSpec)
        enumerator = create_enumerator(uid, spec, restored)
        with raised_on_driver(f"the split enumerator of source {uid!r}", SourceReadError), closing(enumerator):
            if restored and enumerator.exhausted:
                return f"source {uid!r} has input that came after its end" if enumerator.unread() else None
            match enumerator.has_input(parallelism):
                case None:
                    return f"only a run can tell whether source {uid!r} has input"
                case True:
                    return f"source {uid!r} has input"
        return None

    def _first_timer(self, latest: CheckpointMetadata, store: ObjectStore) -> int | None:
        known = (latest.checkpoint_id, latest.fencing_token)
        if self._timers is None or self._timers[:2] != known:
            tables = (table for _, table in latest.timers(PROCESSING_TIMERS))
            times = [time for t in tables for time in read_rows(t, store, ["time"]).column("time").to_pylist()]
            self._timers = (*known, min(times, default=None))
        return self._timers[2]
