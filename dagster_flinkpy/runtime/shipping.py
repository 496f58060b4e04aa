"""Pickles a job, including the user's code, for the Python workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from dagster_flinkpy import code_pickling
from dagster_flinkpy.datastream.functions import Function
from dagster_flinkpy.datastream.program.job_graph import JobGraph, StreamPartitioner
from dagster_flinkpy.datastream.program.python_environment import installed
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.spark.user_modules import user_modules_by_value
from dagster_flinkpy.storage.lease import check_shared

__all__ = ["copies", "dump_job", "load_for_each", "load_job", "loaded_job"]


def dump_job(job: EpochJob) -> bytes:
    """Pickles a job, with user modules by value. Operators that were given the same function do not share it."""
    import cloudpickle

    with _shippable(job.graph), user_modules_by_value(cloudpickle):
        data = code_pickling.dumps(_separated(job)[0])
    # The Python dependencies come first: they must be importable before the job is unpickled.
    return pickle.dumps((job.python, job.cache_dir, data), protocol=5)


@contextmanager
def copies(job: EpochJob) -> Iterator[Callable[[], EpochJob]]:
    """Yields what makes copies of a job for tasks in this process, as :func:`load_job` does elsewhere.

    Classes stay as they are here, so it is not enough to unpickle what :func:`dump_job` returns: objects would not be
    those that the methods of these classes know.
    """
    import cloudpickle

    with _shippable(job.graph), user_modules_by_value(cloudpickle):
        shipped, pickled = _separated(job)
        make = pickled(shipped)
    with installed(job.python, job.cache_dir):
        yield make


def _separated(job: EpochJob) -> tuple[EpochJob, Callable[..., Callable[[], Any]]]:
    """Returns a job without what only the driver needs, whose operators share no object, and what makes its copies."""
    vertices = [vertex.on_workers() for vertex in job.graph.vertices]
    job = replace(job, python=None, graph=replace(job.graph, vertices=tuple(vertices)))
    pickled = code_pickling.maker(job, Function)
    for i, vertex in enumerate(vertices):
        with suppress(Exception):  # as of an object that only workers can unpickle
            vertices[i] = replace(vertex, spec=pickled(vertex.spec, beside_methods=True)())
    edges, partitioners = list(job.graph.edges), dict[tuple[str, int], StreamPartitioner]()
    for i, edge in enumerate(edges):  # behind a union, each operator before it has its own
        with suppress(Exception):
            key = edge.source, id(edge.partitioner)
            partitioners.setdefault(key, pickled(edge.partitioner, beside_methods=True)())
            edges[i] = replace(edge, partitioner=partitioners[key])
    return replace(job, graph=replace(job.graph, vertices=tuple(vertices), edges=tuple(edges))), pickled


@contextmanager
def _shippable(graph: JobGraph) -> Iterator[None]:
    import cloudpickle

    try:
        yield
    except Exception as e:
        with user_modules_by_value(cloudpickle):
            raise ConfigurationError(f"{_unpicklable(graph)} cannot be sent to the workers: {e}") from e


def _unpicklable(graph: JobGraph) -> str:
    for vertex in graph.vertices:
        try:
            code_pickling.dumps(vertex.on_workers())
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


def load_for_each(first: EpochJob, data: bytes) -> Iterator[EpochJob]:
    """Yields a job for each subtask of this process: the one that :func:`loaded_job` has loaded, and copies of it.

    To unpickle it again would give its classes other methods, which do not know the objects of the first one. All must
    be taken before the first one is used.
    """
    yield first
    make: Callable[[], EpochJob] = partial(load_job, data)
    with suppress(Exception):  # something can be pickled in the driver only
        make = code_pickling.maker(first, Function)(first, beside_methods=True)
    while True:
        yield make()


@contextmanager
def loaded_job(data: bytes) -> Iterator[EpochJob]:
    """Unpickles a job; inside the context, its Python dependencies can be imported and read.

    Raises:
        ConfigurationError: The dependencies cannot be unpacked or installed.
        StoreUnreachableError: This is a worker without a way to the store.
    """
    python, cache_dir, pickled = pickle.loads(data)
    with installed(python, cache_dir):
        del data, python  # a slot has the context open for as long as it lives, and gets a program for each deployment
        job = [pickle.loads(pickled)]
        del pickled
        if not job[0].through_driver:
            check_shared(job[0].job_storage)
        yield job.pop()
