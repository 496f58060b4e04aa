from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dagster_flinkpy.checkpoint.operator_program import operator_code_version
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.functions import MapFunction
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.programs import Count, word_count


def version_of(function: Any) -> str:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1], Types.LONG()).map(function, output_type=Types.LONG()).uid("it")
    return operator_code_version(env.get_job_graph(), "it")


def compiled(source: str, line: int = 0) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile("\n" * line + source, f"file{line}.py", "exec"), names)
    return names["f"]


class Scaled(MapFunction):
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def map(self, value: int) -> int:
        return value * self.factor


class ScaledTwice(Scaled):
    def map(self, value: int) -> int:
        return super().map(value) * 2


def test_follows_the_code_not_where_it_is() -> None:
    source = "def f(x):\n    # a comment\n    return x + 1"
    assert version_of(compiled(source)) == version_of(compiled("def f(x):\n    return x + 1", line=7))


@pytest.mark.parametrize("other", ["return x + 2", "return y(x)", "return [z for z in (x,) if z]"])
def test_changes_with_the_body(other: str) -> None:
    assert version_of(compiled("def f(x):\n    return x + 1")) != version_of(compiled(f"def f(x):\n    {other}"))


def test_changes_with_what_a_function_closes_over() -> None:
    def adder(n: Any) -> Callable[[int], int]:
        return lambda x: x + n

    assert version_of(adder(1)) == version_of(adder(1))
    assert version_of(adder(1)) != version_of(adder(2))
    assert version_of(adder(timedelta(1))) != version_of(adder(timedelta(2)))


def test_changes_with_the_settings_of_a_function_object() -> None:
    assert version_of(Scaled(1)) == version_of(Scaled(1))
    versions = {version_of(f) for f in (Scaled(1), Scaled(2), ScaledTwice(1), Scaled({"a": {1, 2}}), Scaled([1]))}
    assert len(versions) == 5


def test_an_object_that_holds_itself_is_described() -> None:
    function = Scaled(1)
    function.factor = [function]
    assert version_of(function) == version_of(function)


class Cached:
    @cached_property
    def table(self) -> dict[str, int]:
        return {"a": 1}

    def __call__(self, value: int) -> int:
        return value


def test_does_not_follow_what_is_cached() -> None:
    function = Cached()
    before = version_of(function)
    assert function.table
    assert version_of(function) == before


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (np.zeros(5000), np.arange(5000.0)),
        (np.array([1.0]), np.array([1.000000001])),
        (pa.table({"a": [1] * 30}), pa.table({"a": [1] * 15 + [None] + [1] * 14})),
        (pd.DataFrame({"a": [0] * 100}), pd.DataFrame({"a": [0] * 50 + [1] + [0] * 49})),
        (re.compile("a" * 300), re.compile("a" * 300 + "b")),
        (Slotted(1), Slotted(2)),
        (deque([Slotted(1)]), deque([Slotted(2)])),
        ("a".join, "b".join),
    ],
    ids=["array", "precision", "table", "frame", "pattern", "slots", "deque", "method"],
)
def test_changes_with_all_of_a_value_whose_text_is_cut(before: Any, now: Any) -> None:
    assert version_of(Scaled(before)) == version_of(Scaled(copy(before)))
    assert version_of(Scaled(before)) != version_of(Scaled(now))


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = {}\ndef f(x):\n    return x < LIMIT",
        "LIMITS = (1, {})\ndef f(x):\n    return [each for each in x if each in LIMITS]",
        "class F:\n    limits = dict(a={})\n    def __call__(self, x):\n        return x in self.limits\nf = F()",
    ],
    ids=["number", "tuple", "class"],
)
def test_changes_with_the_constants_that_it_names(source: str) -> None:
    assert version_of(compiled(source.format(2))) == version_of(compiled(source.format(2), line=3))
    assert version_of(compiled(source.format(2))) != version_of(compiled(source.format(3)))


def test_follows_no_list_of_a_module_and_no_constant_that_it_does_not_name() -> None:
    source = "SEEN, OTHER = [{0}], {0}\ndef f(x):\n    SEEN.append(x)"
    assert version_of(compiled(source.format(1))) == version_of(compiled(source.format(2)))


def test_changes_with_the_key_selector(tmp_path: Path) -> None:
    def version(selector: Callable[[Any], Any]) -> str:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([1], Types.LONG()).key_by(selector, Types.LONG()).process(Count()).uid("it")
        return operator_code_version(env.get_job_graph(), "it")

    assert version(lambda x: x) == version(lambda x: x)
    assert version(lambda x: x) != version(lambda x: x % 2)


def test_follows_the_table_of_a_sink_not_its_credentials() -> None:
    def version(location: StorageLocation) -> str:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([1], Types.LONG()).sink_to(ParquetSink(location)).uid("it")
        return operator_code_version(env.get_job_graph(), "it")

    plain, secret = StorageLocation("s3://b/t"), StorageLocation("s3://b/t", access_key_id="k", secret_access_key="s")
    assert version(plain) == version(secret)
    assert version(plain) != version(StorageLocation("s3://b/u"))


def test_is_equal_in_another_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tests.orchestration.programs import word_count;"
        "from dagster_flinkpy.checkpoint.operator_program import operator_code_version as v;"
        f"graph = word_count(Path({str(tmp_path)!r}), ['a']).get_job_graph();"
        "print(*(v(graph, x.uid) for x in graph.vertices))"
    )
    graph = word_count(tmp_path, ["a"]).get_job_graph()
    here = [operator_code_version(graph, v.uid) for v in graph.vertices]
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "5", "PATH": ""},
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert there.stdout.split() == here
    assert len(set(here)) == len(here)
