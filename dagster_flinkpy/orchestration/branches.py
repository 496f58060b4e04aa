"""Jobs in branch deployments, which continue from the state of production and write elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from dagster_flinkpy.errors import ConfigurationError, JobNotFoundError
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_job
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.storage import StorageLocation

__all__ = ["current_branch", "fork_at_first_run", "job_of_deployment"]

_IS_BRANCH = "DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT"
_DEPLOYMENT = "DAGSTER_CLOUD_DEPLOYMENT_NAME"
_BRANCH = "FLINKPY_BRANCH"


def current_branch() -> str | None:
    """Returns the name of the branch that this process is deployed from, or None in production.

    In a branch deployment of Dagster+, it is the name of the deployment, ``DAGSTER_CLOUD_DEPLOYMENT_NAME``. Elsewhere
    it is the value of ``FLINKPY_BRANCH``. A program uses it to write to other tables and topics than production.

    Raises:
        ConfigurationError: It is a branch deployment without a name.
    """
    if not _on_dagster_plus():
        return os.environ.get(_BRANCH) or None
    if not (name := os.environ.get(_DEPLOYMENT)):
        raise ConfigurationError(f"{_IS_BRANCH} is 1, but {_DEPLOYMENT} is not set: set it to the name of the branch")
    return name


def _on_dagster_plus() -> bool:
    return os.environ.get(_IS_BRANCH) == "1"


def job_of_deployment(env: Environment, name: str, *, fork_in_branches: bool) -> tuple[FlinkJob, str]:
    """Returns the job of a program in this deployment, and the name that the keys of its assets begin with.

    Args:
        env: The program.
        name: Name of the job in production.
        fork_in_branches: Whether it is a job of its own in branches: ``{name}_{branch}``, a fork.

    Raises:
        ConfigurationError: The name cannot be used for a folder and an asset key.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    branch = current_branch() if fork_in_branches else None
    if branch is None:
        return flink_job(env, name), name
    job = replace(flink_job(env, f"{name}_{branch}"), fork_of=name)
    # A branch deployment of Dagster+ has an asset graph of its own, which is compared with production's by key.
    return job, name if _on_dagster_plus() else job.job_id


def fork_at_first_run(
    job: FlinkJob, storage: StorageLocation, config: FlinkRunConfig, *, owner: str, log: Callable[[str], None]
) -> None:
    """Forks production's job for the first run of a branch's. Of other jobs, it refuses one that was only renamed.

    In every run, the sinks are compared with those of production, whether or not the job was forked.

    Args:
        job: The job that is to run.
        storage: The checkpoint storage, with the folders of both jobs.
        config: Config of the run. Nothing is forked or refused if it says where the job starts.
        owner: Names the run, for messages of other runs.
        log: Is told what was forked.

    Raises:
        ConfigurationError: A sink writes where one of production does, or the job has a new name and no state.
        JobNotFoundError: Production's job has no checkpoint in this storage.
        CheckpointError: Another run has begun the job just now.
    """
    from dagster_flinkpy.checkpoint.forks.fork import fork_job
    from dagster_flinkpy.checkpoint.forks.fork_sinks import refuse_renamed, refuse_sinks_of
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
    from dagster_flinkpy.checkpoint.traces import head_of_job

    own, told = storage.child(job.job_id), config.start_empty or config.restore_from is not None
    if job.fork_of is None:
        if not told:
            refuse_renamed(own, job.graph)
        return
    production = storage.child(job.fork_of)
    refuse_sinks_of(job.fork_of, own, job.graph)
    head = head_of_job(own.open())
    begun = head is not None and not head.new and not head.disposed
    if begun or told:
        return
    if CompletedCheckpointStore(production.open()).latest() is None:
        raise JobNotFoundError(
            f"job {job.job_id!r} of this branch starts with the state of job {job.fork_of!r}, but there is no "
            f"checkpoint of it in {production.url}. Use the checkpoint storage of production. If the job is new in "
            "this branch, run it with start_empty once"
        )
    checkpoint_id = fork_job(production, job.job_id, owner=owner)
    log(f"Job {job.job_id} is a fork of {production.url}: it continues with its state, as checkpoint {checkpoint_id}")
