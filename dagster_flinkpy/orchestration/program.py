"""Finds the program that somebody names, and an attempt of the job whose checkpoints are in a folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.job import JobAttempt
    from dagster_flinkpy.storage import StorageLocation

__all__ = ["find_program", "load_program", "program_attempt"]


def find_program(module: ModuleType, name: str) -> Environment:
    """A program, or the function that builds it.

    Raises:
        ConfigurationError: The module has no such thing.
    """
    found = getattr(module, name, None)
    if not callable(found) and not isinstance(found, StreamExecutionEnvironment):
        raise ConfigurationError(
            f"{name} of {module.__name__} is neither a program nor a function that builds one: {found!r}"
        )
    program: Environment = found
    return program


def load_program(path: str) -> Environment:
    """The program at ``package.module:name``, from the working directory on, or at ``folder/file.py:name``.

    Raises:
        ConfigurationError: There is none.
    """
    source, colon, name = path.rpartition(":")
    if not colon or not source or not name:
        raise ConfigurationError(f"program {path!r}: write 'package.module:function', or 'folder/file.py:function'")
    try:
        return find_program(_module(source), name)
    except (ImportError, FileNotFoundError) as error:
        raise ConfigurationError(f"program {path!r} cannot be imported from {Path.cwd()}: {error}") from error


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
    program: Environment,
    job: StorageLocation,
    *,
    spark: SparkResource,
    owner: str,
    on_progress: Callable[[str], None],
    **options: Any,
) -> JobAttempt:
    """An attempt of the job of a program whose checkpoints are in a folder, not yet entered.

    It keeps as many checkpoints as there are.

    Args:
        program: The program; it may ask Spark for types.
        job: ``{checkpoint storage}/{job id}``.
        spark: What runs it.
        owner: Who does it.
        on_progress: Is told in a line what goes on.
        options: Further arguments of ``JobAttempt``.

    Raises:
        ConfigurationError: The program has several jobs, and the folder is of none of them.
        CheckpointError: A run may be at work.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    from dagster_flinkpy.checkpoint.offline import number_retained, refuse_beside_run

    env = program if isinstance(program, StreamExecutionEnvironment) else program()
    folder, _, job_id = job.url.rpartition("/")
    flink_job = _job(env, job_id)
    refuse_beside_run(job, time.time_ns() // 1_000_000)
    storage = CheckpointStorageResource(url=folder, endpoint_url=job.endpoint_url, num_retained=number_retained(job))
    return flink_job.attempt(storage, spark, owner=owner, on_progress=on_progress, **options)


def _job(env: StreamExecutionEnvironment, job_id: str) -> FlinkJob:
    """As :func:`flink_jobs` names them: of several regions each after its first source."""
    jobs = flink_jobs(env, job_id)
    if len(jobs) == 1:
        return jobs[0]
    first = [job.graph.vertices[0].uid for job in jobs]
    for name in (job_id.removesuffix(f".{uid}") for uid in first):
        for job in flink_jobs(env, name):
            if job.job_id == job_id:
                return job
    ends = ", ".join(f"'.{uid}'" for uid in first)
    raise ConfigurationError(
        f"the program has {len(first)} jobs, for no pipelined edge joins them, and {job_id!r} is none of them: the "
        f"names of their folders end with {ends}"
    )
