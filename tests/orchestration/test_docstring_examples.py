"""Runs the examples in the docstrings of ``orchestration``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_flinkpy import orchestration
from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment

_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", re.MULTILINE)


def words_env() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["to", "be"], Types.STRING()).uid("words")
    words.key_by(lambda word: word, Types.STRING()).reduce(max).uid("longest")
    return env


def examples() -> Iterator[tuple[str, str]]:
    for name in orchestration.__all__:
        text = textwrap.dedent(inspect.getdoc(getattr(orchestration, name)) or "")
        section = text.partition("Examples:\n")[2]
        for block in _BLOCK.findall(textwrap.dedent(section) + "\n"):
            yield name, textwrap.dedent(block)


EXAMPLES = list(examples())


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_runs(name: str, code: str) -> None:
    known: dict[str, Any] = {
        "__name__": "example",
        "words_env": words_env,
        "words": orchestration.flink_assets(words_env, name="words"),
    }
    exec(compile(code, name, "exec"), known)


def test_what_is_called_first_has_an_example() -> None:
    assert {
        "FlinkTranslator",
        "build_checkpoint_sensor",
        "FlinkAssetChecks",
        "build_flink_jobs",
        "build_job_status_sensors",
        "build_restart_sensor",
        "build_retention_sensor",
        "build_savepoint_sensor",
        "flink_assets",
    } <= {name for name, _ in EXAMPLES}
