"""Pickles a job, including the user's code, for the Python workers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime import code_pickling
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.python_environment import installed
from dagster_flinkpy.runtime.user_modules import user_modules_by_value

__all__ = ["dump_job", "load_job", "loaded_job"]


def dump_job(job: EpochJob) -> bytes:
    """Pickles a job, with user modules by value."""
    import cloudpickle

    with user_modules_by_value(cloudpickle):
        try:
            data = code_pickling.dumps(replace(job, python=None))
        except Exception as e:
            raise ConfigurationError(f"{_unpicklable(job.graph)} cannot be sent to the workers: {e}") from e
    # The Python dependencies come first: they must be importable before the job is unpickled.
    return pickle.dumps((job.python, job.cache_dir, data), protocol=5)


def _unpicklable(graph: JobGraph) -> str:
    for vertex in graph.vertices:
        try:
            code_pickling.dumps(vertex)
        except Exception:
            return f"an object in operator {vertex.uid!r} ({vertex.name}), which open() should create instead,"
    return "the program"


def load_job(data: bytes) -> EpochJob:
    """Unpickles what :func:`dump_job` returned, without its Python dependencies.

    The data comes only from the driver of this job.
    """
    *_, pickled = pickle.loads(data)
    job: EpochJob = pickle.loads(pickled)
    return job


@contextmanager
def loaded_job(data: bytes) -> Iterator[EpochJob]:
    """Unpickles a job; inside the context, its Python dependencies can be imported and read.

    Raises:
        ConfigurationError: The dependencies cannot be unpacked or installed.
    """
    python, cache_dir, pickled = pickle.loads(data)
    with installed(python, cache_dir):
        del data, python  # a slot has the context open for as long as it lives, and gets a program for each deployment
        job = [pickle.loads(pickled)]
        del pickled
        yield job.pop()
