"""Finds a program by its name, and creates attempts of the job whose checkpoints are in a folder."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, BlockingEdgeSourceSpec
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import (
    ConfigurationError,
    ParallelismError,
    RestoreError,
    SourceReadError,
    StateSchemaError,
    UserFunctionError,
)
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, job_of
from dagster_flinkpy.orchestration.resources import SparkResource, checkpoint_storage

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.evolution import Evolution, OperatorEvolution
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.recomputation import Recomputation
    from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint
    from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
    from dagster_flinkpy.datastream.program.job_graph import JobGraph
    from dagster_flinkpy.runtime.master.commits.committers import Committers
    from dagster_flinkpy.runtime.master.job import JobAttempt
    from dagster_flinkpy.runtime.restore_trial import OperatorTrial
    from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "RestoreForecast",
    "changed_operators",
    "check_recomputation",
    "find_program",
    "forecast",
    "load_descriptors",
    "load_program",
    "plan_restore",
    "program_attempt",
    "program_committers",
    "to_recompute",
    "written_operators",
]


def find_program(module: ModuleType, name: str) -> Environment:
    """Returns the program of this name in a module, or the function that builds it.

    Raises:
        ConfigurationError: The module has neither.
    """
    if not hasattr(module, name):
        raise ConfigurationError(f"{module.__name__} has no {name!r}: name the function that builds the program")
    found = getattr(module, name)
    if not callable(found) and not isinstance(found, StreamExecutionEnvironment):
        raise ConfigurationError(
            f"{name} of {module.__name__} is neither a program nor a function that builds one: {found!r}"
        )
    program: Environment = found
    return program


def _needed(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments that a function cannot be called without."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()  # a decorator may give some
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]


def load_program(path: str) -> Environment:
    """Imports the program at ``package.module:name``, relative to the working directory, or ``folder/file.py:name``.

    Raises:
        ConfigurationError: There is no such program, or the function needs arguments.
    """
    program = find_program(*_module_and_name("program", path))
    if inspect.isfunction(program) and (needed := _needed(program)):
        raise ConfigurationError(
            f"program {path!r} needs arguments ({', '.join(needed)}): name a function that builds it without any"
        )
    return program


def load_descriptors(path: str) -> Mapping[str, Iterable[StateDescriptor]]:
    """Imports descriptors of state by uid, from where :func:`load_program` imports a program.

    Raises:
        ConfigurationError: There are no such descriptors.
    """
    module, name = _module_and_name("descriptors", path)
    found = getattr(module, name, None)
    found = found() if callable(found) else found
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"descriptors {path!r}: there is no dict of lists of descriptors by uid")
    return found


def _module_and_name(what: str, path: str) -> tuple[ModuleType, str]:
    source, colon, name = path.rpartition(":")
    if not colon or not source or not name:
        raise ConfigurationError(f"{what} {path!r}: write 'package.module:function', or 'folder/file.py:function'")
    try:
        return _module(source), name
    except (ImportError, FileNotFoundError) as error:
        raise ConfigurationError(f"{what} {path!r} cannot be imported from {Path.cwd()}: {error}") from error


def _module(source: str) -> ModuleType:
    file = Path(source)
    folder = str(file.parent.absolute() if file.suffix == ".py" else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if file.suffix != ".py":
        return importlib.import_module(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def program_attempt(
    program: Environment | FlinkJob,
    job: StorageLocation,
    *,
    spark: SparkResource,
    owner: str,
    on_progress: Callable[[str], None],
    **options: Any,
) -> JobAttempt:
    """Creates an attempt of a program's job, given the folder of its checkpoints; enter it to start.

    The attempt retains as many checkpoints as there are.

    Args:
        program: The program, which may ask Spark for types, or its job.
        job: The job's folder: ``{checkpoint storage}/{job id}``.
        spark: The Spark that runs the attempt.
        owner: Names the attempt in messages to the attempts that it fences.
        on_progress: Receives one-line progress messages.
        options: Further arguments of ``JobAttempt``.

    Raises:
        ConfigurationError: The name of the folder cannot be a job's.
        CheckpointError: A run may be working on the job.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    from dagster_flinkpy.checkpoint.offline import number_retained, refuse_beside_run

    program = job_of(program, job.name)
    refuse_beside_run(job, current_millis())
    storage = checkpoint_storage(job.parent, number_retained(job))
    return program.attempt(storage, spark, owner=owner, on_progress=on_progress, **options)


@dataclass(frozen=True)
class RestoreForecast:
    """What would happen if a program started on a checkpoint or savepoint."""

    evolution: Evolution
    """What has changed, and what happens to the state."""
    parallelism: tuple[str, ...]
    """What the run would log about its parallelism."""
    problem: str | None
    """Why the restore would fail, or None if it would succeed."""
    unknown: tuple[str, ...] = ()
    """Why it could not be found out of some operators whether their state fits."""
    recomputation: Recomputation | None = None
    """What is recomputed; None if nothing is."""
    proposed: Recomputation | None = None
    """What a switch could recompute: what does not fit, or else what has changed."""
    not_proposed: str | None = None
    """Why what has changed cannot be recomputed."""

    @property
    def of_recomputation(self) -> list[str]:
        """What is recomputed, or could be, as lines for people; empty if nothing is."""
        if self.recomputation is not None:
            return self.recomputation.lines
        if self.not_proposed is not None:
            return [f"what has changed cannot be recomputed: {self.not_proposed}"]
        if self.proposed is None:
            return []
        unfit = self.problem is not None
        could = (
            "a switch could recompute it:" if unfit else "a switch with recompute_changed would not keep that state:"
        )
        return [could, *self.proposed.lines]

    def to_json(self) -> dict[str, Any]:
        """Encodes the forecast for the output of a command."""
        operators = [
            {
                "uid": each.uid,
                "operator": each.change.value,
                "state": each.state.value,
                "rows": each.rows,
                "changes": list(each.details),
            }
            for each in self.evolution.operators
        ]
        remarks = [*self.evolution.remarks, *self.parallelism]
        return {
            "since": self.evolution.since,
            "operators": operators,
            "remarks": remarks,
            "problem": self.problem,
            "unknown": list(self.unknown),
            "recomputation": None if self.recomputation is None else self.recomputation.to_json(),
            "proposed": None if self.proposed is None else self.proposed.to_json(),
        }


def plan_restore(
    program: Environment | FlinkJob,
    stored: StoredCheckpoint,
    parallelism: int | None = None,
    allow_non_restored_state: NonRestoredState = False,
    *,
    allow_pickled_state: bool = False,
    recompute: Collection[str] = (),
    recompute_changed: bool = False,
    since: str | None = None,
) -> RestoreForecast:
    """Returns what would happen if a program started on a checkpoint or savepoint. Starts and changes nothing.

    The functions of operators with state are opened in this process, as tasks would open them, and closed again.

    Args:
        program: The program, or its job.
        stored: The checkpoint or savepoint.
        parallelism: The parallelism that the run would ask for, or None.
        allow_non_restored_state: Whether state without an operator may be left behind, or the uids whose state may.
        allow_pickled_state: Whether functions may read operator state that is pickled. Whoever wrote it can run code
            in this process. Default: it is unknown whether such state fits.
        recompute: Uids of operators that would not keep their state, see `switch_program`. Default: none.
        recompute_changed: Whether operators that have changed would not keep theirs, either.
        since: ``chk-7``: their state needs no input from before this checkpoint. Default: it needs all.

    Raises:
        JobGraphError: The program is not valid, or a stateful operator has no uid.
        ConfigurationError: No operator has such a uid, or ``since`` cannot be used.
    """
    job = job_of(program, stored.metadata.job_id)
    found = forecast(
        job.graph,
        stored,
        parallelism,
        allow_non_restored_state,
        allow_pickled_state=allow_pickled_state,
        recompute=recompute,
        recompute_changed=recompute_changed,
        since=since,
    )
    if found.recomputation is not None and found.problem is None:
        try:
            check_recomputation(job, stored.files, stored.metadata, found.recomputation)
        except (ConfigurationError, SourceReadError) as error:
            return replace(found, problem=str(error))
    return found


def check_recomputation(
    program: FlinkJob, job: StorageLocation, metadata: CheckpointMetadata, recomputation: Recomputation
) -> None:
    """Checks that sinks can replace their rows, and that the program can read again what edges have kept.

    Raises:
        ConfigurationError: A sink cannot, or the job is partitioned by time.
        SourceReadError: A segment cannot be read, or has other fields than the program.
    """
    from dagster_flinkpy.checkpoint.head import read_head
    from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
    from dagster_flinkpy.checkpoint.recomputation import partitioned_error
    from dagster_flinkpy.runtime.blocking.segments import check_retained

    head = read_head(job.open())
    if head is not None and head[0].partitions:  # the checkpoint may be of none, such as that of another switch
        raise partitioned_error(job.name)
    with program_committers(program, job, metadata) as committers:
        committers.check_replaceable(recomputation)
    check_retained(job.child(EXCHANGE_FOLDER), program.graph, metadata, recomputation)


def forecast(
    graph: JobGraph,
    stored: StoredCheckpoint,
    parallelism: int | None = None,
    allow_non_restored_state: NonRestoredState = False,
    *,
    allow_pickled_state: bool = False,
    recompute: Collection[str] = (),
    recompute_changed: bool = False,
    since: str | None = None,
) -> RestoreForecast:
    """Returns what would happen if a job started on a checkpoint or savepoint, like `plan_restore`."""
    from dagster_flinkpy.checkpoint.evolution import evolution_since
    from dagster_flinkpy.checkpoint.kept_parallelism import settle_parallelism
    from dagster_flinkpy.checkpoint.metadata import CheckpointKind
    from dagster_flinkpy.checkpoint.offline import without_committed
    from dagster_flinkpy.checkpoint.recomputation import recomputation_of, without_state
    from dagster_flinkpy.checkpoint.restore import assign, restore_targets
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.runtime.restore_trial import try_operators

    if stored.metadata.kind is CheckpointKind.CHECKPOINT and (
        leader := CompletedCheckpointStore(stored.files.open()).leader()
    ):
        stored = replace(stored, metadata=without_committed(stored.metadata, graph, leader.committed))
    evolution = evolution_since(stored.metadata, graph, allow_non_restored_state=allow_non_restored_state)
    built: Recomputation | None = None
    try:
        if uids := to_recompute(graph, stored, recompute, recompute_changed, since, allow_non_restored_state):
            built = recomputation_of(stored.metadata, graph, uids, since)
            evolution = replace(evolution, operators=tuple(_recomputed(each, built) for each in evolution.operators))
            stored = replace(stored, metadata=without_state(stored.metadata, graph, built))
        settled = settle_parallelism(graph, stored.metadata, parallelism)
        assign(stored.metadata, restore_targets(settled.graph), allow_non_restored_state=allow_non_restored_state)
        trials = try_operators(
            settled.graph,
            stored,
            allow_non_restored_state=allow_non_restored_state,
            allow_pickled_state=allow_pickled_state,
        )
    except (ParallelismError, RestoreError, ConfigurationError, StateSchemaError, UserFunctionError) as error:
        return RestoreForecast(evolution, (), str(error), recomputation=built)
    tried = replace(evolution, operators=tuple(_tried(each, trials.get(each.uid)) for each in evolution.operators))
    found = RestoreForecast(
        tried,
        settled.told,
        "; ".join(trial.problem for trial in trials.values() if trial.problem is not None) or None,
        tuple(trial.unknown for trial in trials.values() if trial.unknown is not None),
        built,
    )
    return found if built is not None else _with_proposal(found, stored.metadata, graph)


def to_recompute(
    graph: JobGraph,
    stored: StoredCheckpoint,
    recompute: Collection[str],
    recompute_changed: bool,
    since: str | None,
    allow_non_restored_state: NonRestoredState = False,
) -> set[str]:
    """Returns the uids of the operators that a switch recomputes, without those that follow; see `switch_program`.

    Raises:
        ConfigurationError: It is unknown whether an operator has changed, or none has, or there is only a ``since``.
    """
    if since is not None and not recompute and not recompute_changed:
        raise ConfigurationError("since says from where operators are recomputed: name them with recompute")
    changed = changed_operators(graph, stored, allow_non_restored_state) if recompute_changed else ()
    return {*recompute, *changed}


def changed_operators(
    graph: JobGraph, stored: StoredCheckpoint, allow_non_restored_state: NonRestoredState = False
) -> list[str]:
    """Returns the uids of operators that have changed since a checkpoint, are new, or do not fit their state.

    None is returned if they have not since the switch that recomputes them, and they have not read anything yet.

    Raises:
        ConfigurationError: It is unknown whether an operator has changed, or none has.
    """
    from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE

    found = forecast(graph, stored, allow_non_restored_state=allow_non_restored_state).evolution
    changed = _changed(found, graph)
    unknown = [each.uid for each in written_operators(found, graph) if not each.compared and each.uid not in changed]
    if unknown:
        raise ConfigurationError(
            f"it is unknown whether {', '.join(map(repr, unknown))} changed since {found.since}, which was taken with "
            "another version of Python or of this library, or their settings are too large to be compared: name what "
            "is to be recomputed with recompute"
        )
    if not changed and TO_REPLACE not in stored.metadata.properties:
        raise ConfigurationError(
            f"no operator has changed since {found.since}, so none would be recomputed. Code that functions call is "
            "not compared: name the operators with recompute"
        )
    return changed


def written_operators(evolution: Evolution, graph: JobGraph) -> list[OperatorEvolution]:
    """Returns what became of the operators that the user has written: the ends of blocking edges may come and go."""
    own = {v.uid for v in graph.vertices if type(v.spec) not in (BlockingEdgeSinkSpec, BlockingEdgeSourceSpec)}
    return [each for each in evolution.operators if each.uid in own]


def _changed(evolution: Evolution, graph: JobGraph) -> list[str]:
    from dagster_flinkpy.checkpoint.evolution import Change, StateOutcome

    def changed(found: OperatorEvolution) -> bool:
        return found.change in (Change.CHANGED, Change.ADDED) or found.state is StateOutcome.INCOMPATIBLE

    return [each.uid for each in written_operators(evolution, graph) if changed(each)]


def _with_proposal(found: RestoreForecast, metadata: CheckpointMetadata, graph: JobGraph) -> RestoreForecast:
    """Adds what a switch could recompute: what does not fit, or else what has changed."""
    from dagster_flinkpy.checkpoint.evolution import StateOutcome
    from dagster_flinkpy.checkpoint.recomputation import recomputation_of

    unfit = [each.uid for each in found.evolution.operators if each.state is StateOutcome.INCOMPATIBLE]
    if not (uids := unfit or _changed(found.evolution, graph)):
        return found
    try:
        return replace(found, proposed=recomputation_of(metadata, graph, uids))
    except (ConfigurationError, RestoreError) as error:
        if unfit:
            return replace(found, problem=f"{found.problem}; it cannot be recomputed either: {error}")
        return replace(found, not_proposed=str(error))


def _recomputed(found: OperatorEvolution, built: Recomputation) -> OperatorEvolution:
    from dagster_flinkpy.checkpoint.evolution import StateOutcome

    kept = found.uid in built.uids and found.state is StateOutcome.KEPT
    return replace(found, state=StateOutcome.RECOMPUTED) if kept else found


def _tried(found: OperatorEvolution, trial: OperatorTrial | None) -> OperatorEvolution:
    """Adds to what is known of an operator what has come of trying it."""
    from dagster_flinkpy.checkpoint.evolution import Change, StateOutcome

    if trial is None:
        return found
    if trial.problem is not None:
        return replace(found, state=StateOutcome.INCOMPATIBLE)
    if not trial.changes:
        return found
    return replace(found, change=Change.CHANGED, details=(*found.details, *trial.changes))


@contextmanager
def program_committers(
    program: Environment | FlinkJob, job: StorageLocation, latest: CheckpointMetadata | None = None
) -> Iterator[Committers]:
    """Yields the committers of a program's job, given the folder of its checkpoints. Use them for queries only.

    Args:
        program: The program, or its job.
        job: ``{checkpoint storage}/{job id}``.
        latest: The job's latest checkpoint. Default: None.

    Raises:
        ConfigurationError: The name of the folder cannot be a job's.
    """
    from dagster_flinkpy.runtime.master.commits.committers import Committers
    from dagster_flinkpy.runtime.master.watchdog import Watchdog

    found = job_of(program, job.name)
    watchdog = Watchdog(found.checkpointing.timeout)
    ancestors = () if latest is None else latest.ancestors_of(found.job_id)
    with closing(watchdog):
        yield Committers(found.graph, found.job_id, fencing_token=0, watchdog=watchdog, ancestors=ancestors)
