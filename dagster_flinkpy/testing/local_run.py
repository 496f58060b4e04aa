"""Runs whole programs in this process, without Spark."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.datastream.data_stream import DataStream
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

__all__ = ["run_local"]


def run_local(env: StreamExecutionEnvironment, *streams: DataStream, job_name: str = "local") -> list[list[Any]]:
    """Runs a bounded program to its end in this process, without Spark.

    The tasks are those that run on Spark, one after the other: state, watermarks, checkpoints and two-phase commits are
    the same, and sinks write where the program says. User functions run in this thread, so a debugger can stop in them.
    Afterwards the environment is empty, as after ``env.execute()``.

    Examples:
        >>> from dagster_flinkpy.common import Types
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> words = env.from_collection(["a", "b", "a"], Types.STRING())
        >>> run_local(env, words.map(str.upper, Types.STRING()))
        [['A', 'B', 'A']]

    Args:
        env: The program.
        streams: Streams of the program whose records are wanted.
        job_name: Name of the job.

    Returns:
        The records of each stream, in order of the streams.

    Raises:
        ConfigurationError: An argument is not an environment, or not a stream with records.
        JobGraphError: Uids, parallelisms or edges are wrong, or a stream belongs to another environment.
        FlinkPyError: The program failed, as it would have failed on Spark. (``from_spark()`` needs Spark even here.)
    """
    if not isinstance(env, StreamExecutionEnvironment):
        raise ConfigurationError(f"run_local() needs an environment, not {env!r}")
    for stream in streams:
        if not isinstance(stream, DataStream):
            raise ConfigurationError(f"run_local() returns the records of DataStreams, not of {stream!r}")
        if stream._upstream.program is not env._program:
            raise JobGraphError("run_local() was given a stream of another environment")
    return env._program.run_local([stream._upstream for stream in streams], job_name)
