"""The Dagster jobs for everything besides checkpoints: savepoints, restores, cleanup and a look into the state."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

from dagster import Config, JobDefinition, OpExecutionContext, job, op

from dagster_flinkpy.orchestration.branches import job_of_deployment
from dagster_flinkpy.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.definitions.shown_operators import Show
from dagster_flinkpy.orchestration.definitions.translator import FlinkTranslator, job_assets
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment
from dagster_flinkpy.orchestration.job_assets import asset_job, is_internal
from dagster_flinkpy.orchestration.runs.job_operations import JobOperations

__all__ = ["build_flink_jobs"]

_CHOICES = (
    "The name is enough for a savepoint next to the job's checkpoints. If there is no savepoint of this name, the run "
    "fails and its error lists the savepoints."
)


def build_flink_jobs(
    env: Environment,
    *,
    name: str,
    show: Show = "operators",
    fork_in_branches: bool = False,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[JobDefinition | UnresolvedAssetJobDefinition]:
    """Builds the Dagster jobs of a program: checkpoints, savepoints, restores and the like.

    ===================== ===========================================================================================
    ``{name}_checkpoint`` Takes checkpoints: it materializes the assets, and evaluates their checks.
    ``{name}_savepoint``  Keeps the last completed checkpoint, or the next one of a running job, as a savepoint.
    ``{name}_restore``    Makes a savepoint the job's latest checkpoint, optionally at another parallelism.
    ``{name}_import``     Makes a savepoint of one of Flink, or of a checkpoint of Spark, to be restored.
    ``{name}_rescale``    Spreads the latest checkpoint over another parallelism. A stopped job stays stopped.
    ``{name}_reset``      Goes back to an older checkpoint that is still kept.
    ``{name}_stop``       Takes a last checkpoint and keeps it as a savepoint. The job then stays stopped, and its
                          sensor starts no runs, until a savepoint is restored.
    ``{name}_dispose``    Deletes a savepoint.
    ``{name}_fork``       Creates another job that continues from the state of this one; nothing is copied.
    ``{name}_upgrade``    Compares the rows of this version of the program with those of another one, on forks.
    ``{name}_switch``     Brings the state to this version of the program, and keeps the old state as a fork.
    ``{name}_rollback``   Brings the job back to this version, whose state the switch has kept.
    ``{name}_sweep``      Deletes files that failed epochs have left behind, and old savepoints.
    ``{name}_inspect``    Shows the state of one key.
    ===================== ===========================================================================================

    While a run works on the job, savepoint, stop and rescale ask it, and it answers; restore and reset refuse to start.
    These five record what was done as an observation of each asset. After a restore, a rescale or a reset, later runs
    continue from its checkpoint.

    Args:
        env: The program, as passed to `flink_assets`.
        name: Name of the job, as passed to `flink_assets`.
        show: Which operators are assets, as passed to `flink_assets`.
        fork_in_branches: As passed to `flink_assets`. In a branch, the upgrade job works on production's state.
        translator: Creates the asset specs, as passed to `flink_assets`.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid.

    Examples:
        .. code-block:: python

            from dagster import Definitions
            from dagster_flinkpy.orchestration import build_flink_jobs, flink_assets

            # `words_env` builds the program
            defs = Definitions(
                assets=flink_assets(words_env, name="words"), jobs=build_flink_jobs(words_env, name="words")
            )
    """
    program, prefix = job_of_deployment(env, name, fork_in_branches=fork_in_branches)
    assets = job_assets(program, name=prefix, show=show, translator=translator)
    operations = JobOperations(assets, spark_resource_key, checkpoint_storage_resource_key)
    keys, text = frozenset(assets.keys), f"Takes a checkpoint of job {program.job_id}."
    checkpoint = asset_job(program.job_id, keys, "checkpoint", text)
    return [checkpoint, *_jobs_of_attempts(operations), *_jobs_beside(operations)]


def _build(
    operations: JobOperations,
    verb: str,
    step_name: str,
    perform: Callable[[OpExecutionContext, Any], Any],
    description: str,
    *,
    attempt: bool = True,
    spark: bool = False,
    example: Mapping[str, Any] | None = None,
) -> JobDefinition:
    """Builds a job that works on a program's state. It is one step.

    Args:
        operations: What the jobs of the program do.
        verb: The last part of its name.
        step_name: The name of its step.
        perform: What its step does, with the type of its config.
        description: What it is for.
        attempt: Whether its run works on the job. No other run waits for one that does not. Default: True.
        spark: Whether its step needs Spark although its run does not work on the job. Default: False.
        example: The config with which the launchpad opens. Default: none.
    """

    def function(context: OpExecutionContext, config: Config) -> Any:
        return perform(context, config)

    # Dagster reads the config and the output of a step from the annotations of its function.
    hints = get_type_hints(perform)
    function.__annotations__.update({name: hints[name] for name in ("config", "return")})
    keys = {operations.storage_key, *([operations.spark_key] if attempt or spark else [])}
    tags = {JOB_TAG: operations.job.job_id} if attempt else {}
    step = op(name=step_name, required_resource_keys=keys, tags=tags)(function)
    shown = {"ops": {step_name: {"config": dict(example or {})}}}

    @job(name=f"{operations.job.dagster_name}_{verb}", description=description, tags=tags, config=shown)
    def only() -> None:
        step()

    return only


def _jobs_of_attempts(operations: JobOperations) -> list[JobDefinition]:
    """The jobs whose runs work on the job."""
    job_id, name = operations.job.job_id, operations.job.dagster_name
    build = partial(_build, operations)
    return [
        build(
            "savepoint",
            f"take_savepoint_of_{name}",
            operations.take_savepoint,
            f"Keeps the last completed checkpoint of job {job_id}, or its next one if it is running, as a savepoint.",
        ),
        build(
            "restore",
            f"restore_{name}",
            operations.restore,
            f"Makes a savepoint the latest checkpoint of job {job_id}, at the same or another parallelism. {_CHOICES}",
            example={"savepoint_path": f"savepoint-{job_id}-"},
        ),
        build(
            "rescale",
            f"rescale_{name}",
            operations.rescale,
            f"Spreads the latest checkpoint of job {job_id} over another parallelism. If the job is running, it "
            "continues in the same run.",
            example={"parallelism": max(vertex.parallelism for vertex in operations.job.graph.vertices)},
        ),
        build(
            "reset",
            f"reset_{name}",
            operations.reset,
            f"Takes job {job_id} back to an older checkpoint that is still kept. Committed rows stay. "
            "If the checkpoint is no longer kept, the run fails and its error lists the kept ones.",
            example={"checkpoint_id": 1},
        ),
        build("stop", f"stop_{name}", operations.stop, f"Stops job {job_id} with a savepoint."),
        build(
            "switch",
            f"switch_{name}",
            operations.switch,
            f"Brings the state of job {job_id} to this version of the program, and keeps the old state as a fork.",
        ),
        build(
            "rollback",
            f"roll_back_{name}",
            operations.roll_back,
            f"Brings job {job_id} back to this version of the program, whose state the switch has kept.",
        ),
    ]


def _jobs_beside(operations: JobOperations) -> list[JobDefinition]:
    """The jobs whose runs do not work on the job, so that others need not wait for them."""
    build, job_id, name = partial(_build, operations, attempt=False), operations.job.job_id, operations.job.dagster_name
    graph = operations.job.graph
    with_state = (v.uid for v in graph.vertices if v.spec.keeps_state and graph.inputs(v.uid) and not is_internal(v))
    return [
        build(
            "import",
            f"import_for_{name}",
            operations.import_state,
            f"Makes a savepoint for job {job_id} of one of Flink, or of a checkpoint of Spark. Then restore it with "
            f"{name}_restore.",
            spark=True,
            example={"flink_savepoint": "", "target": ""},
        ),
        build(
            "dispose",
            f"dispose_savepoint_of_{name}",
            operations.dispose,
            f"Deletes a savepoint. {_CHOICES}",
            example={"savepoint_path": f"savepoint-{job_id}-"},
        ),
        build(
            "fork",
            f"fork_{name}",
            operations.fork,
            f"Creates a job that continues from the state of job {job_id}, which goes on. Its sinks must write "
            "elsewhere.",
            example={"name": f"{job_id}_fork"},
        ),
        build(
            "upgrade",
            f"prove_upgrade_of_{name}",
            operations.upgrade,
            f"Runs this version of job {job_id} and another one on the last input, on forks, and compares their rows.",
            spark=True,
            example={"from_program": ""},
        ),
        build(
            "sweep",
            f"sweep_{name}",
            operations.sweep,
            f"Deletes files that failed epochs of job {job_id} have left behind, and old savepoints.",
        ),
        build(
            "inspect",
            f"inspect_{name}",
            operations.inspect,
            f"Shows the state of one key of job {job_id}.",
            example={"uid": next(with_state, ""), "key": ""},
        ),
    ]
