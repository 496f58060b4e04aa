"""The job graph: operators and edges, and the stages, pipelined regions and fingerprint that follow from them.

Mirrors Flink's ``StreamGraph`` and ``JobGraph``. A *stage* is what one Spark task runs between two shuffles; forward
edges are chained inside it (``StreamingJobGraphGenerator``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Any

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSink, BlockingEdgeSource
from dagster_flinkpy.datastream.functions import Function, Partitioner, function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    OperatorSpec,
    Selector,
    SourceSpec,
    SparkTransformSpec,
    TimestampsSpec,
)
from dagster_flinkpy.datastream.program.python_dependencies import PythonDependencies
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import (
    ConfigurationError,
    DuplicateUidError,
    JobGraphError,
    MissingUidError,
    ParallelismError,
)
from dagster_flinkpy.key_groups import check_whole_number, compute_default_max_parallelism

__all__ = ["JobEdge", "JobGraph", "JobVertex", "PartitionerKind", "StreamPartitioner", "build_job_graph"]

_UID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_EDGE_ENDS = (BlockingEdgeSinkSpec, BlockingEdgeSourceSpec)


class PartitionerKind(Enum):
    """How an edge distributes records over the subtasks downstream."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    GLOBAL = "global"
    CUSTOM = "custom"


@dataclass(frozen=True)
class StreamPartitioner:
    """How an edge selects a channel for each record (Flink: ``StreamPartitioner``)."""

    kind: PartitionerKind
    selector: Selector | None = None
    """HASH and CUSTOM: the key of a record: a function, or the name or names of fields."""
    key_type: TypeInformation | None = None
    """HASH: the declared type of the key, or None if the first key decides."""
    custom: Partitioner | Callable[[Any, int], int] | None = None
    """CUSTOM: returns the subtask for a key and a number of subtasks."""


@dataclass(frozen=True)
class JobEdge:
    """An edge. Its index in `JobGraph.edges` is its id on the wire."""

    id: int
    source: str
    target: str
    input_index: int
    partitioner: StreamPartitioner
    type_info: TypeInformation
    side_output: str | None = None
    """The tag of the side output it carries, or None for the main output."""
    forward: bool = False
    """Whether it was declared as forward. As in Flink, it rebalances between different parallelisms."""
    blocking: bool = False
    """Whether it joins two pipelined regions through stored segments (Flink: ``ResultPartitionType.BLOCKING``)."""
    retain: timedelta | None = None
    """How long the segments are kept after they were read."""

    @property
    def key_type(self) -> TypeInformation | None:
        """The type of the keys; None if there are no keys, or if the first key decides."""
        partitioner, record = self.partitioner, self.type_info
        if partitioner.kind is not PartitionerKind.HASH:
            return None
        if not isinstance(record, RowTypeInfo) or not isinstance(partitioner.selector, (str, tuple)):
            return partitioner.key_type
        names = (partitioner.selector,) if isinstance(partitioner.selector, str) else partitioner.selector
        types = [record.field_types[record.field_names.index(name)] for name in names]
        return types[0] if isinstance(partitioner.selector, str) else TupleTypeInfo(types)


@dataclass(frozen=True)
class JobVertex:
    """An operator."""

    uid: str
    name: str
    spec: OperatorSpec
    parallelism: int
    max_parallelism: int
    max_parallelism_set: bool
    output_type: TypeInformation
    side_outputs: tuple[tuple[str, TypeInformation], ...] = ()
    description: str = ""
    """Longer than the name; empty if none is set."""
    uid_set: bool = False
    parallelism_set: bool = False
    slot_sharing_group: str = "default"
    slot_resources: SlotSharingGroup | None = None
    """What a slot of the group has; None if the program does not say."""
    job_parameters: tuple[tuple[str, str], ...] = ()
    """The parameters that its functions read with ``get_job_parameter``."""
    python: PythonDependencies = field(default_factory=PythonDependencies)
    """What functions of the program need on the workers. The same for all of its operators."""
    strict: bool = False
    """Whether a timer for a time in the past is an error."""
    migrations: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    """Functions that change its keyed state at a restore, by the version of the state that they start from."""
    declared_at: tuple[str, int] | None = field(default=None, compare=False)
    """File and line of the program that declare it; None if they are not known."""

    def on_workers(self) -> JobVertex:
        """Returns it without what only the driver needs: tasks may not have its code."""
        return replace(self, spec=self.spec.on_workers(), migrations=())


@dataclass(frozen=True)
class JobGraph:
    """A validated program. It is immutable; `with_parallelism` returns a changed copy."""

    vertices: tuple[JobVertex, ...]
    """In topological order."""
    edges: tuple[JobEdge, ...]

    def __post_init__(self) -> None:
        counts = Counter(v.uid for v in self.vertices)
        for uid, n in counts.items():
            if n > 1:
                names = [v.name for v in self.vertices if v.uid == uid]
                raise DuplicateUidError(
                    f"uid {uid!r} is set on {n} operators ({', '.join(names)}); a uid must be unique"
                )
            if not _UID.fullmatch(uid):
                raise JobGraphError(f"uid {uid!r}: use letters, digits, '_', '.' and '-'")
        for v in self.vertices:
            if v.parallelism < 1:
                raise ParallelismError(f"operator {v.uid!r}: parallelism {v.parallelism} is less than 1")
            if not 1 <= v.max_parallelism <= 32768:
                raise ParallelismError(f"operator {v.uid!r}: max parallelism {v.max_parallelism} is not in 1..32768")
            if v.parallelism > v.max_parallelism:
                raise ParallelismError(
                    f"operator {v.uid!r}: parallelism {v.parallelism} is above its max parallelism {v.max_parallelism}"
                    "; lower it, or raise the maximum with set_max_parallelism() (before the first checkpoint)"
                )

    @cached_property
    def _by_uid(self) -> dict[str, JobVertex]:
        return {v.uid: v for v in self.vertices}

    def vertex(self, uid: str) -> JobVertex:
        """Returns the operator of a uid.

        Raises:
            JobGraphError: There is no such operator.
        """
        try:
            return self._by_uid[uid]
        except KeyError:
            raise JobGraphError(f"no operator has uid {uid!r}; there are {sorted(self._by_uid)}") from None

    @cached_property
    def _inputs(self) -> dict[str, list[JobEdge]]:
        found: dict[str, list[JobEdge]] = {}
        for e in self.edges:
            found.setdefault(e.target, []).append(e)
        return found

    @cached_property
    def _outputs(self) -> dict[str, list[JobEdge]]:
        found: dict[str, list[JobEdge]] = {}
        for e in self.edges:
            found.setdefault(e.source, []).append(e)
        return found

    def inputs(self, uid: str) -> list[JobEdge]:
        """Returns the edges into an operator."""
        return list(self._inputs.get(uid, ()))

    def outputs(self, uid: str) -> list[JobEdge]:
        """Returns the edges out of an operator."""
        return list(self._outputs.get(uid, ()))

    @property
    def sources(self) -> list[JobVertex]:
        """The operators that read from outside the program."""
        reads_edge = (BlockingEdgeSourceSpec, SparkTransformSpec)
        return [v for v in self.vertices if not self.inputs(v.uid) and not isinstance(v.spec, reads_edge)]

    def without_uid(self) -> list[JobVertex]:
        """Returns the operators that need their own uid and have none."""
        exchanging = {uid for e in self.edges if e.blocking for uid in (e.source, e.target)}
        return [v for v in self.vertices if (v.spec.keeps_state or v.uid in exchanging) and not v.uid_set]

    def require_uids(self) -> None:
        """Checks that all stateful operators have their own uid.

        Raises:
            MissingUidError: Some have no uid; the message names all of them.
        """
        missing = self.without_uid()
        if missing:
            raise MissingUidError(
                "stateful operators and those next to blocking() need a uid, or their state is lost when the program "
                "changes: " + ", ".join(f"{v.name} ({v.spec.kind})" for v in missing) + "; call .uid('...') on each"
            )

    @cached_property
    def stages(self) -> dict[str, int]:
        """The stage of each operator: 0 for sources, and one higher after each shuffle."""
        stage: dict[str, int] = {}
        for v in self.vertices:
            depth = 0
            for e in self.inputs(v.uid):
                chainable = (
                    e.partitioner.kind is PartitionerKind.FORWARD and function_of(v.spec, InputSelectable) is None
                )
                depth = max(depth, stage[e.source] + (0 if chainable else 1))
            stage[v.uid] = depth
        return stage

    @cached_property
    def static_uids(self) -> frozenset[str]:
        """Uids of the operators that only static sources reach, and of these sources."""
        found: set[str] = set()
        for v in self.vertices:
            inputs = self.inputs(v.uid)
            if getattr(v.spec, "static", False) if not inputs else all(e.source in found for e in inputs):
                found.add(v.uid)
        return frozenset(found)

    def static_inputs(self, uid: str) -> list[JobEdge]:
        """Returns the edges whose records an operator takes before those of its other edges; none if all are alike."""
        edges = self.inputs(uid)
        static = [e for e in edges if e.source in self.static_uids]
        return static if len(static) < len(edges) else []

    def is_chained(self, edge: JobEdge) -> bool:
        """Returns whether an edge joins two operators of the same task."""
        return edge.partitioner.kind is PartitionerKind.FORWARD and self.stages[edge.source] == self.stages[edge.target]

    def at_once(self, uid: str) -> int:
        """Returns how many records an operator, or one that is chained behind it, may take as long for as for one."""
        return self._at_once[uid]

    @cached_property
    def _at_once(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for v in reversed(self.vertices):
            chained = (found[edge.target] for edge in self.outputs(v.uid) if self.is_chained(edge))
            found[v.uid] = max((v.spec.at_once, *chained))
        return found

    @cached_property
    def watermark_origins(self) -> dict[str, tuple[str, ...]]:
        """The uids of the operators that generate the watermarks which an operator sends."""
        found: dict[str, tuple[str, ...]] = {}
        for v in self.vertices:
            before = dict.fromkeys(origin for e in self.inputs(v.uid) for origin in found[e.source])
            found[v.uid] = (v.uid,) if isinstance(v.spec, SourceSpec | TimestampsSpec) else tuple(before)
        return found

    @staticmethod
    def selectors(edges: Iterable[JobEdge]) -> list[Function]:
        """Returns the key selectors and partitioners of edges that are objects: they are opened and closed."""
        partitioners = [edge.partitioner for edge in edges]
        used = [each for p in partitioners for each in (p.custom, p.selector) if isinstance(each, Function)]
        return list({id(each): each for each in used}.values())

    @property
    def number_of_stages(self) -> int:
        """The number of stages."""
        return 1 + max(self.stages.values())

    def stage_parallelism(self, stage: int) -> int:
        """Returns the number of tasks of a stage: the parallelism of its widest operator."""
        return max(v.parallelism for v in self.vertices if self.stages[v.uid] == stage)

    def stage_vertices(self, stage: int) -> list[JobVertex]:
        """Returns the operators of a stage, in topological order."""
        return [v for v in self.vertices if self.stages[v.uid] == stage]

    def split(self) -> JobGraph:
        """Returns the whole program with each blocking edge cut into its two ends.

        A sink ``{source}.exchange`` writes the edge, and a source ``{source}.exchange.{target}`` reads it.
        """
        return _split(self) if any(e.blocking for e in self.edges) else self

    def regions(self) -> list[JobGraph]:
        """Returns the pipelined regions as graphs, in topological order (``PipelinedRegionComputeUtil``).

        A blocking edge separates regions: see :meth:`split`. The parts that have no blocking edge are one region,
        whether an edge joins them or not.

        Raises:
            JobGraphError: A blocking edge joins operators of the same region, or regions in a cycle.
        """
        split = self.split()
        if not any(isinstance(v.spec, _EDGE_ENDS) for v in split.vertices):
            return [self]
        parts = split.parts()
        alone = [part for part in parts if not any(isinstance(v.spec, _EDGE_ENDS) for v in part.vertices)]
        if len(alone) > 1:
            together = split._subgraph([v for part in alone for v in part.vertices])
            parts = [together if part is alone[0] else part for part in parts if part not in alone[1:]]
        return _in_order(parts)

    def parts(self) -> list[JobGraph]:
        """Returns the parts of the graph that no pipelined edge connects."""
        parent = {v.uid: v.uid for v in self.vertices}

        def root(uid: str) -> str:
            while parent[uid] != uid:
                uid = parent[uid]
            return uid

        for e in self.edges:
            parent[root(e.target)] = root(e.source)
        members: dict[str, list[JobVertex]] = {}
        for v in self.vertices:
            members.setdefault(root(v.uid), []).append(v)
        return [self._subgraph(vertices) for vertices in members.values()]

    def _subgraph(self, vertices: Sequence[JobVertex]) -> JobGraph:
        uids = {v.uid for v in vertices}
        edges = [e for e in self.edges if e.source in uids]
        return JobGraph(tuple(vertices), tuple(replace(e, id=i) for i, e in enumerate(edges)))

    def _with_vertices(self, change: Callable[[JobVertex], JobVertex]) -> JobGraph:
        graph = JobGraph(tuple(change(v) for v in self.vertices), self.edges)
        return JobGraph(graph.vertices, tuple(_fit(e, graph) for e in graph.edges))

    def with_parallelism(self, parallelism: int) -> JobGraph:
        """Returns the same program at another parallelism. Operators for which a parallelism is set keep it.

        A max parallelism that was not set follows from the parallelism, as in Flink
        (``KeyGroupRangeAssignment.computeDefaultMaxParallelism``). A restore adopts the stored one.

        Raises:
            ParallelismError: It is above a max parallelism that was set, or is not a whole number.
        """
        check_whole_number("parallelism", parallelism)

        def change(v: JobVertex) -> JobVertex:
            if v.parallelism_set:
                return v
            groups = v.max_parallelism if v.max_parallelism_set else compute_default_max_parallelism(parallelism)
            return replace(v, parallelism=parallelism, max_parallelism=groups)

        return self._with_vertices(change)

    def with_max_parallelisms(self, max_parallelisms: dict[str, int]) -> JobGraph:
        """Returns the same program with the max parallelisms of a restored checkpoint."""
        return self._with_vertices(lambda v: replace(v, max_parallelism=max_parallelisms.get(v.uid, v.max_parallelism)))

    def with_specs(self, specs: Mapping[str, OperatorSpec]) -> JobGraph:
        """Returns the same program with other operators under some of its uids."""
        return self._with_vertices(lambda v: replace(v, spec=specs.get(v.uid, v.spec)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the structure: of uids, kinds and edges, but not of parallelism or code."""
        shape = {
            "vertices": [[v.uid, v.spec.kind] for v in self.vertices],
            "edges": [
                [e.source, e.target, e.input_index, _declared(e).value, e.side_output, *(["blocking"] * e.blocking)]
                for e in self.edges
            ],
        }
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def _fit(edge: JobEdge, graph: JobGraph) -> JobEdge:
    """Returns the edge with the partitioner that the parallelisms of its ends require."""
    if not edge.forward:
        return edge
    equal = graph.vertex(edge.source).parallelism == graph.vertex(edge.target).parallelism
    return replace(edge, partitioner=StreamPartitioner(PartitionerKind.FORWARD if equal else PartitionerKind.REBALANCE))


def _declared(edge: JobEdge) -> PartitionerKind:
    return PartitionerKind.FORWARD if edge.forward else edge.partitioner.kind


def _split(graph: JobGraph) -> JobGraph:
    """Returns the graph with a sink and a source in place of each blocking edge.

    A stream has one sink, and one source for each operator that reads it. A Spark transform is itself such a source,
    and the streams that are united in it share one sink.
    """
    behind: dict[str, dict[str, JobVertex]] = {}
    before: dict[str, dict[str, JobVertex]] = {}
    transforms: dict[str, JobVertex] = {}
    edges: list[JobEdge] = []
    for e in graph.edges:
        if not e.blocking:
            edges.append(e)
            continue
        upstream, target = graph.vertex(e.source), graph.vertex(e.target)
        tag = "" if e.side_output is None else f".{re.sub('[^A-Za-z0-9_-]', '_', e.side_output)}"
        united = isinstance(target.spec, SparkTransformSpec) and len(graph.inputs(target.uid)) > 1
        sink_uid = f"{target.uid + '.union' if united else upstream.uid + tag}.exchange"
        forward = StreamPartitioner(PartitionerKind.FORWARD)
        sinks = before.setdefault(target.uid, {}) if united else behind.setdefault(upstream.uid, {})
        new = sink_uid not in sinks
        if new:
            beside = target if united else upstream
            same = (each for each in graph.outputs(e.source) if each.side_output == e.side_output)
            end = BlockingEdgeSinkSpec(BlockingEdgeSink(retain=_longest(graph.inputs(target.uid) if united else same)))
            sinks[sink_uid] = _edge_end(beside, sink_uid, end, e.type_info, beside.uid_set)
        if new or united:
            edges.append(JobEdge(0, upstream.uid, sink_uid, 0, forward, e.type_info, e.side_output, forward=True))
        if isinstance(target.spec, SparkTransformSpec):
            source = replace(target.spec.source, sink_uid=sink_uid)
            transforms[target.uid] = replace(target, spec=replace(target.spec, source=source))
        else:
            source_uid = f"{sink_uid}.{target.uid}"
            spec = BlockingEdgeSourceSpec(BlockingEdgeSource(sink_uid, e.type_info), WatermarkStrategy.no_watermarks())
            uid_set = upstream.uid_set and target.uid_set
            before.setdefault(target.uid, {})[source_uid] = _edge_end(target, source_uid, spec, e.type_info, uid_set)
            edges.append(replace(e, source=source_uid, side_output=None, blocking=False))
    vertices: list[JobVertex] = []
    for v in graph.vertices:
        vertices += [*before.get(v.uid, {}).values(), transforms.get(v.uid, v), *behind.get(v.uid, {}).values()]
    split = JobGraph(tuple(vertices), tuple(replace(e, id=i) for i, e in enumerate(edges)))
    return JobGraph(split.vertices, tuple(_fit(e, split) for e in split.edges))


def _longest(edges: Iterable[JobEdge]) -> timedelta | None:
    """Returns how long what all of these edges carry is kept."""
    return max((e.retain for e in edges if e.retain is not None), default=None)


def _edge_end(beside: JobVertex, uid: str, spec: OperatorSpec, type_info: TypeInformation, uid_set: bool) -> JobVertex:
    """Returns one end of a blocking edge, with the parallelism of the operator next to it."""
    return replace(
        beside,
        uid=uid,
        name=f"Blocking edge of {beside.name}",
        spec=spec,
        output_type=type_info,
        side_outputs=(),
        uid_set=uid_set,
    )


def _in_order(regions: list[JobGraph]) -> list[JobGraph]:
    """Returns the regions in an order in which each comes after those whose segments it reads."""
    home = {v.uid: i for i, region in enumerate(regions) for v in region.vertices}
    reads = [
        {
            home[v.spec.source.sink_uid]: v
            for v in region.vertices
            if isinstance(v.spec, BlockingEdgeSourceSpec) and v.spec.source.sink_uid in home
        }
        for region in regions
    ]
    ordered: list[int] = []
    while len(ordered) < len(regions):
        left = [i for i in range(len(regions)) if i not in ordered]
        ready = next((i for i in left if reads[i].keys() <= set(ordered)), None)
        if ready is None:
            edges = sorted(_edge_into(v) for i in left for j, v in reads[i].items() if j in left)
            raise JobGraphError(
                f"blocking edges {', '.join(edges)} do not separate the program, because other edges join their "
                "ends; call blocking() on those, too"
            )
        ordered.append(ready)
    return [regions[i] for i in ordered]


def _edge_into(vertex: JobVertex) -> str:
    """Describes the blocking edge that a source reads, for a message."""
    if isinstance(vertex.spec, SparkTransformSpec):
        return f"{vertex.spec.source.sink_uid.removesuffix('.exchange')} -> {vertex.uid}"
    return vertex.uid.replace(".exchange.", " -> ")


def build_job_graph(vertices: Iterable[JobVertex], edges: Iterable[JobEdge]) -> JobGraph:
    """Checks the parts of a program and builds its graph.

    Raises:
        JobGraphError: The program has no operators, or the uids or parallelisms are wrong.
    """
    vertices = list(vertices)
    edges = [replace(e, forward=e.partitioner.kind is PartitionerKind.FORWARD) for e in edges]
    if not vertices:
        raise JobGraphError("the program has no operators; start with env.from_source(...) or env.from_collection(...)")
    graph = JobGraph(tuple(vertices), tuple(edges))
    graph = JobGraph(graph.vertices, tuple(_fit(e, graph) for e in graph.edges))
    for e in graph.edges:
        target = graph.vertex(e.target)
        keyed = target.spec.keyed and e.input_index not in target.spec.broadcast_inputs
        if keyed and e.partitioner.kind is not PartitionerKind.HASH:
            raise JobGraphError(
                f"operator {target.uid!r} is keyed but its input {e.source!r} is not; call key_by() first"
            )
    for v in graph.vertices:
        for e in graph.outputs(v.uid):
            if e.side_output is not None and e.side_output not in dict(v.side_outputs):
                raise ConfigurationError(f"operator {v.uid!r} has no side output {e.side_output!r}")
        _check_key_types(v, graph)
        if any(e.blocking and e.source in graph.static_uids for e in graph.inputs(v.uid)):
            raise JobGraphError(
                f"operator {v.uid!r} reads a static input over a blocking edge, which does not keep it before other "
                "input: call blocking() on another edge, or leave out static()"
            )
    return graph


def _check_key_types(vertex: JobVertex, graph: JobGraph) -> None:
    """Raises `JobGraphError` if inputs of an operator have different declared key types."""
    known = [(e, kind) for e in graph.inputs(vertex.uid) if (kind := e.key_type) is not None]
    for e, kind in known[1:]:
        first, first_kind = known[0]
        if kind != first_kind:
            raise JobGraphError(
                f"operator {vertex.uid!r}: the keys of {first.source!r} are {first_kind}, of {e.source!r} {kind}; "
                "its inputs share state, so give their key_by() keys of one type"
            )
