"""The program that streams declare: its operators, its settings, and the job graph built from them.

Streams, windowed streams and connected streams hold an `Upstream`, which knows its `StreamProgram`. So none of them
imports the environment. Windowed and connected streams do not import data streams either: the program creates them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.job_client import JobClient
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from dagster_flinkpy.datastream.aggregations import key_fields
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.execution_mode import RuntimeExecutionMode
from dagster_flinkpy.datastream.functions import KeySelector
from dagster_flinkpy.datastream.operator_specs import (
    CollectSpec,
    OperatorSpec,
    ReduceSpec,
    RollingAggregateSpec,
    Selector,
    SinkSpec,
    SourceSpec,
    TimestampsSpec,
    as_callable,
)
from dagster_flinkpy.datastream.program.event_time import warn_of_stalls, with_later_idleness
from dagster_flinkpy.datastream.program.execution import ExecutionSettings, JobExecutionResult, get_executor
from dagster_flinkpy.datastream.program.given import Given
from dagster_flinkpy.datastream.program.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    PartitionerKind,
    StreamPartitioner,
    build_job_graph,
)
from dagster_flinkpy.datastream.program.python_dependencies import PythonDependencies
from dagster_flinkpy.datastream.program.transformation import Input, Transformation
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import (
    ConfigurationError,
    JobGraphError,
    MissingUidWarning,
    ParallelismError,
    UnsupportedKeyTypeError,
)
from dagster_flinkpy.key_groups import compute_default_max_parallelism

__all__ = ["FORWARD", "ExecutionEnvironment", "StreamProgram", "Upstream"]

_NO_KEYS = ("BIG_INT", "BYTES", "INSTANT")
"""Basic types that `key_hashes` does not hash."""

S = TypeVar("S")

FORWARD = Given(StreamPartitioner(PartitionerKind.FORWARD), has_code=False)
"""How the next operator reads a stream without a partitioner."""


class ExecutionEnvironment(Protocol):
    """The environment of a program, as its streams know it: a `StreamExecutionEnvironment`."""

    def get_parallelism(self) -> int:
        """Returns the default number of subtasks."""

    def get_config(self) -> ExecutionConfig:
        """Returns the settings that are not about checkpoints."""

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Returns the checkpoint settings."""

    def get_job_graph(self) -> JobGraph:
        """Returns the program as a validated graph."""

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Runs the program until its input has ended and all sinks have committed."""


class StreamProgram(Generic[S]):
    """The operators of a program, and the settings that apply to all of them.

    Args:
        environment: The environment of the program.
        make_stream: Creates a stream from the output of an operator.
    """

    def __init__(
        self, environment: ExecutionEnvironment, make_stream: Callable[[Upstream[S], Transformation], S]
    ) -> None:
        self.environment = environment
        self.transformations: list[Transformation] = []
        self.runtime_mode = RuntimeExecutionMode.STREAMING
        self.parallelism = 1
        self.max_parallelism: int | None = None
        self.config = ExecutionConfig()
        self.checkpoint_config = CheckpointConfig()
        self.job_name: str | None = None
        self.savepoint_path: str | None = None
        self.allow_non_restored_state: NonRestoredState = False
        self.local = False
        self.mini_batch = False
        """Whether running aggregations have one result per key and epoch."""
        self.python = PythonDependencies()
        self.slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        """Those that are registered, by name."""
        self.migrations: dict[str, dict[int, Callable[[Any], Any]]] = {}
        """Functions that change stored state, by the uid of the operator and the version that they start from."""
        self._make_stream = make_stream
        self._warned_of: set[str] = set()

    def add(
        self,
        name: str,
        spec: OperatorSpec,
        inputs: Sequence[Upstream[S]] = (),
        output_type: TypeInformation | None = None,
    ) -> Transformation:
        """Adds an operator.

        Args:
            name: The name of the operator.
            spec: What it does.
            inputs: What each of its inputs reads; none for a source.
            output_type: The type of its records. Default: they are pickled.

        Raises:
            ConfigurationError: The type is not a type from ``Types``.
        """
        if output_type is not None and not isinstance(output_type, TypeInformation):
            raise ConfigurationError(f"operator {name!r} needs a type from Types.*, not {output_type!r}")
        transformation = Transformation(
            name,
            Given(spec),
            [upstream.inputs for upstream in inputs],
            output_type or PickledBytesTypeInfo(),
            default_parallelism=self.parallelism,
        )
        self.transformations.append(transformation)
        return transformation

    def set_runtime_mode(self, mode: RuntimeExecutionMode, stacklevel: int = 3) -> None:
        """Sets whether results come record by record, or once at the end of bounded input."""
        if mode is RuntimeExecutionMode.AUTOMATIC:
            because = "it is the same as STREAMING, also if all sources are bounded"
            no_effect("RuntimeExecutionMode.AUTOMATIC", because, stacklevel)
        self.runtime_mode = mode

    def stream(self, transformation: Transformation) -> S:
        """Returns the output of an operator as a stream."""
        return self._make_stream(Upstream(self, (Input(transformation, FORWARD),)), transformation)

    # --- the graph ---------------------------------------------------------------------------------------------------

    def get_job_graph(self) -> JobGraph:
        """Returns the program as a validated graph, and warns of stateful operators without a uid.

        Raises:
            JobGraphError: The uids, parallelisms or edges are wrong.
        """
        graph = self.build(self.transformations)
        self._warn_of_missing_uids(graph.without_uid(), stacklevel=4)
        return graph

    def build(self, roots: Sequence[Transformation]) -> JobGraph:
        """Returns the graph of some operators and everything upstream of them.

        Raises:
            JobGraphError: The uids, parallelisms or edges are wrong.
        """
        transformations = _with_upstream(roots)
        uids = _uids(transformations)
        groups = _slot_sharing_groups(transformations)
        resources = self._slot_resources(transformations)
        vertices = [self._vertex(t, uids[id(t)], groups[id(t)], resources.get(groups[id(t)])) for t in transformations]
        edges: list[JobEdge] = []
        for t in transformations:
            for index, united in enumerate(t.inputs):
                for i in united:
                    source = uids[id(i.transformation)]
                    edge_id = len(edges)
                    edge = JobEdge(edge_id, source, uids[id(t)], index, i.given.as_given(), i.type_info, i.side_output)
                    edges.append(replace(edge, blocking=i.blocking, retain=i.retain))
        graph = build_job_graph(with_later_idleness(vertices, edges), edges)
        for uid in self.migrations:
            if not any(vertex.uid == uid and vertex.spec.keeps_state for vertex in graph.vertices):
                known = ", ".join(repr(vertex.uid) for vertex in graph.vertices if vertex.spec.keeps_state) or "none"
                raise JobGraphError(
                    f"migrate_state names operator {uid!r}, but the program has no operator with state and this uid; "
                    f"those with state are: {known}"
                )
        if self.config.is_strict():
            graph.require_uids()
        own = {uids[id(t)] for t in transformations if t.slot_sharing_group is not None}
        _warn_of_chained_groups(graph, own)
        return graph

    def _slot_resources(self, transformations: Sequence[Transformation]) -> dict[str, SlotSharingGroup]:
        """Returns the groups with resources, by name."""
        found = {name: group for name, group in self.slot_sharing_groups.items() if group.has_resources}
        for group in (t.slot_sharing_group for t in transformations):
            if group is not None and group.has_resources and found.setdefault(group.name, group) != group:
                raise JobGraphError(f"slot-sharing group {group.name!r} has two different sets of resources")
        return found

    def _vertex(
        self, t: Transformation, uid: str, slot_sharing_group: str, slot_resources: SlotSharingGroup | None
    ) -> JobVertex:
        default = self.parallelism if t.default_parallelism is None else t.default_parallelism
        parallelism = default if t.parallelism is None else t.parallelism
        max_parallelism = self.max_parallelism if t.max_parallelism is None else t.max_parallelism
        try:
            key_groups = compute_default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
        except ParallelismError as e:
            raise ParallelismError(f"operator {uid!r}: {e}") from e
        return JobVertex(
            uid=uid,
            name=t.name,
            spec=self._fit(t.given.as_given()),
            parallelism=parallelism,
            max_parallelism=key_groups,
            max_parallelism_set=max_parallelism is not None,
            output_type=t.output_type,
            side_outputs=tuple(t.side_outputs.items()),
            description=t.description,
            uid_set=t.uid is not None,
            parallelism_set=t.parallelism is not None,
            slot_sharing_group=slot_sharing_group,
            slot_resources=slot_resources,
            job_parameters=tuple(self.config.get_global_job_parameters().items()),
            python=self.python,
            strict=self.config.is_strict(),
            migrations=tuple(sorted(self.migrations.get(uid, {}).items())),
            declared_at=t.declared_at,
        )

    def _fit(self, spec: OperatorSpec) -> OperatorSpec:
        """Returns the operator in the form for the program's runtime mode."""
        if self.mini_batch and isinstance(spec, (ReduceSpec, RollingAggregateSpec)):
            spec = replace(spec, mini_batch=True)
        if self.runtime_mode is not RuntimeExecutionMode.BATCH:
            return spec
        if isinstance(spec, (SourceSpec, TimestampsSpec)):
            return replace(spec, watermark_strategy=replace(spec.watermark_strategy, max_out_of_orderness=None))
        return replace(spec, final_only=True) if isinstance(spec, ReduceSpec) else spec

    def _warn_of_missing_uids(self, missing: Sequence[JobVertex], stacklevel: int) -> None:
        """Warns of each operator once, however often the program is built."""
        missing = [v for v in missing if v.uid not in self._warned_of]
        if missing:
            self._warned_of |= {v.uid for v in missing}
            warnings.warn(
                "stateful operators have no uid: "
                + ", ".join(f"{v.name} ({v.spec.kind})" for v in missing)
                + ". If checkpoints are kept, this is an error, because their state is only found again as long as the "
                "program does not change. Call .uid('...') on each.",
                MissingUidWarning,
                stacklevel=stacklevel,
            )

    # --- running it --------------------------------------------------------------------------------------------------

    def settings(self, job_name: str | None) -> ExecutionSettings:
        """Returns the settings of the environment for a run.

        Raises:
            ConfigurationError: The name of the job is no text.
        """
        check_argument("the name of a job", job_name, (str, type(None)), "text")
        return ExecutionSettings(
            job_name or self.job_name or "flink-job",
            self.checkpoint_config.storage_dir,
            savepoint_path=self.savepoint_path,
            allow_non_restored_state=self.allow_non_restored_state,
            local=self.local,
            checkpointing=self.checkpoint_config,
            config=copy(self.config),
        )

    def execute(self, job_name: str | None) -> JobExecutionResult:
        """Runs the program to its end, and forgets it."""
        settings = self.settings(job_name)
        graph = self._take([], stacklevel=5)
        return get_executor().execute(graph, settings)

    def execute_async(self, job_name: str) -> JobClient:
        """Begins to run the program on a thread, and forgets it."""
        settings = self.settings(job_name)
        graph = self._take([], stacklevel=5)
        return get_executor().execute_async(graph, settings)

    def execute_and_collect(self, upstream: Upstream[S], job_name: str | None) -> Iterator[Any]:
        """Runs the program, yields the records of one stream, and forgets the program."""
        settings = self.settings(job_name)
        graph = self._take([_collect(upstream, None)], stacklevel=5)
        return (record for _, record in get_executor().execute_and_collect(graph, settings))

    def run_local(self, upstreams: Sequence[Upstream[S]], job_name: str) -> list[list[Any]]:
        """Runs the program in this process, returns the records of some of its streams, and forgets the program."""
        collects = [_collect(upstream, f"collect_{i}") for i, upstream in enumerate(upstreams)]
        graph = self._take(collects, stacklevel=5)
        records: dict[str, list[Any]] = {f"collect_{i}": [] for i in range(len(upstreams))}
        for uid, record in get_executor().execute_and_collect(graph, replace(self.settings(job_name), local=True)):
            records[uid].append(record)
        return list(records.values())

    def _take(self, more: Sequence[Transformation], stacklevel: int) -> JobGraph:
        graph = self.build([*self.transformations, *more])
        self.transformations.clear()
        self.migrations.clear()
        warn_of_stalls(graph, stacklevel)
        if self.checkpoint_config.storage_dir is None:
            # State ends with the program, so the positions of its sources and sinks do not matter later.
            stateful = [v for v in graph.without_uid() if not isinstance(v.spec, (SourceSpec, SinkSpec))]
            self._warn_of_missing_uids(stateful, stacklevel)
        else:
            graph.require_uids()
        self._warned_of.clear()
        return graph


@dataclass(frozen=True)
class Upstream(Generic[S]):
    """What the next operator reads: one or more outputs of operators of a program."""

    program: StreamProgram[S]
    inputs: tuple[Input, ...]
    """More than one if streams are united."""
    keyed: bool = False
    """Whether `key_by` was the last call on it."""

    @property
    def type_info(self) -> TypeInformation:
        """The type of the records."""
        return self.inputs[0].type_info

    def then(self, name: str, spec: OperatorSpec, output_type: TypeInformation | None) -> S:
        """Adds an operator that reads it, and returns its output."""
        return self.program.stream(self.program.add(name, spec, [self], output_type))

    def partitioned(self, partitioner: StreamPartitioner) -> Upstream[S]:
        """Returns the same outputs, partitioned in another way."""
        given = Given(partitioner)
        return replace(self, inputs=tuple(replace(i, given=given) for i in self.inputs), keyed=False)

    def key_by(self, key_selector: Selector, key_type: TypeInformation | None = None) -> Upstream[S]:
        """Returns the same outputs, partitioned by key.

        Raises:
            JobGraphError: The key is a field that the records do not have.
            ConfigurationError: The selector is not a field, function or `KeySelector`, or the key type is not a type.
            UnsupportedKeyTypeError: Values of the type of the key are no keys.
        """
        wanted = "a function of the record, a KeySelector, or the name or names of its key fields"
        if isinstance(key_selector, (str, tuple)):
            self._check_fields((key_selector,) if isinstance(key_selector, str) else key_selector, key_type)
        else:
            if not callable(key_selector):
                check_argument("key_by()", key_selector, KeySelector, wanted)
            as_callable(key_selector, KeySelector, "get_key")
        if key_type is not None and not isinstance(key_type, TypeInformation):
            raise ConfigurationError(f"key_by() needs a key type from Types.*, not {key_type!r}")
        if key_type is not None:
            _check_key(key_type)
        hashed = self.partitioned(StreamPartitioner(PartitionerKind.HASH, key_selector, key_type))
        return replace(hashed, keyed=True)

    def _check_fields(self, names: tuple[str, ...], key_type: TypeInformation | None) -> None:
        row_type = self.type_info
        if not isinstance(row_type, RowTypeInfo):
            raise JobGraphError(
                f"key_by({names!r}) needs records with fields, not {row_type}: declare "
                "output_type=Types.ROW_NAMED(...) on the operator before it, or give a function"
            )
        unknown = [name for name in names if name not in row_type.field_names]
        if unknown or not names:
            raise JobGraphError(f"key_by({names!r}): no field {unknown}; the stream has {row_type.get_field_names()}")
        kinds = [row_type.field_types[row_type.get_field_index(name)] for name in names]
        if key_type not in (None, kinds[0] if len(kinds) == 1 else None, TupleTypeInfo(kinds)):
            raise JobGraphError(
                f"key_by({names!r}): the types of the fields are {kinds}, not {key_type}; leave out key_type, or give "
                "a function that converts them"
            )
        _check_key(TupleTypeInfo(kinds))

    def key_fields(self, what: str) -> tuple[list[str], list[TypeInformation], bool]:
        """Returns the names and types of the key's fields in a result of a keyed stream, and whether it is a tuple.

        Args:
            what: The caller, for the message.

        Raises:
            ConfigurationError: The type of the key is not declared.
        """
        partitioner = self.inputs[0].partitioner
        return key_fields(partitioner.selector, partitioner.key_type, self.type_info, what)

    def check_same_program(self, other: Upstream[S]) -> None:
        """Raises `JobGraphError` if the other stream belongs to another environment."""
        if other.program is not self.program:
            raise JobGraphError("streams of two environments cannot be combined; create both with the same one")


def _with_upstream(roots: Sequence[Transformation]) -> list[Transformation]:
    """Returns operators and everything that they read, inputs first."""
    found: dict[int, Transformation] = {}

    def visit(t: Transformation) -> None:
        if id(t) not in found:
            for united in t.inputs:
                for i in united:
                    visit(i.transformation)
            found[id(t)] = t

    for t in roots:
        visit(t)
    return list(found.values())


def _slot_sharing_groups(transformations: Sequence[Transformation]) -> dict[int, str]:
    """Returns the group of each operator. Without one it is that of all its inputs, or ``default`` if they differ.

    Flink: ``StreamGraphGenerator.determineSlotSharingGroup``.
    """
    groups: dict[int, str] = {}
    for t in transformations:
        of_inputs = {groups[id(i.transformation)] for united in t.inputs for i in united}
        inherited = of_inputs.pop() if len(of_inputs) == 1 else "default"
        groups[id(t)] = inherited if t.slot_sharing_group is None else t.slot_sharing_group.name
    return groups


def _warn_of_chained_groups(graph: JobGraph, own: set[str]) -> None:
    """Warns of operators with a slot-sharing group of their own that run in the task of another group."""
    for edge in graph.edges:
        before, after = graph.vertex(edge.source), graph.vertex(edge.target)
        chained = graph.is_chained(edge) and not edge.blocking
        if after.uid in own and chained and before.slot_sharing_group != after.slot_sharing_group:
            setting = f"slot_sharing_group({after.slot_sharing_group!r}) of operator {after.uid!r}"
            because = f"it is chained to {before.uid!r}, so both run in one Spark task, whose group is"
            no_effect(setting, f"{because} {before.slot_sharing_group!r}", stacklevel=5)


def _uids(transformations: Sequence[Transformation]) -> dict[int, str]:
    """Returns the uid of each operator. Without a uid it is the name, with a number if the name repeats."""
    taken = {t.uid for t in transformations if t.uid is not None}
    uids: dict[int, str] = {}
    for t in transformations:
        if t.uid is not None:
            uids[id(t)] = t.uid
        else:
            base = re.sub(r"[^a-z0-9]+", "_", t.name.lower()).strip("_") or t.spec.kind
            n = 1
            while (uid := base if n == 1 else f"{base}_{n}") in taken:
                n += 1
            taken.add(uid)
            uids[id(t)] = uid
    return uids


def _collect(upstream: Upstream[Any], uid: str | None) -> Transformation:
    # One subtask, as in Flink, so that the records of one subtask upstream stay in order.
    collect = Given[OperatorSpec](CollectSpec())
    return Transformation("Collect", collect, [upstream.inputs], upstream.type_info, uid=uid, parallelism=1)


def _check_key(kind: TypeInformation) -> None:
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and kind.field_types:
        for field in kind.field_types:
            _check_key(field)
    elif not isinstance(kind, BasicTypeInfo) or kind.name in _NO_KEYS:
        raise UnsupportedKeyTypeError(
            f"key_by(): values of {kind} are no keys; give a function that converts them to text, a boolean, a number "
            "of at most 64 bits, a decimal, or a date or time without a zone, or to a tuple or Row of these"
        )
