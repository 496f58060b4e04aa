"""The savepoints in tests/fixtures/flink-savepoints, and what their programs declare."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Row, Time, Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.functions import AggregateFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

SAVEPOINTS = Path(__file__).parents[1] / "fixtures" / "flink-savepoints"
READABLE = sorted(path.name for path in SAVEPOINTS.iterdir() if path.is_dir() and path.name != "timers-rocksdb-native")

_PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
_WINDOW = _PAIR
_RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.STRING()])


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def _month(descriptor: StateDescriptor) -> StateDescriptor:
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(3650)).build())
    return descriptor


_TIMERS = [ValueStateDescriptor("n", Types.LONG()), ListStateDescriptor("fired", Types.LONG())]
_CONNECTED = {
    "rules": [
        ListStateDescriptor("log", Types.LONG()),
        MapStateDescriptor("rules", Types.STRING(), Types.LONG()),
        MapStateDescriptor("names", Types.INT(), Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.LONG()])),
    ],
    "pairs": [ValueStateDescriptor("left", Types.LONG()), MapStateDescriptor("right", Types.LONG(), Types.STRING())],
}
_FIRED = ValueStateDescriptor("fired", Types.LONG())
DECLARED: Mapping[str, Mapping[str, Sequence[StateDescriptor]]] = {
    "collections-hashmap-p2-canonical": {
        "collections": [
            ListStateDescriptor("pairs", Types.TUPLE([Types.STRING(), Types.LONG()])),
            ListStateDescriptor("words", Types.STRING()),
            MapStateDescriptor("counts", Types.STRING(), Types.LONG()),
            MapStateDescriptor(
                "rows", Types.LONG(), Types.ROW_NAMED(["at", "words"], [Types.LONG(), Types.LIST(Types.STRING())])
            ),
        ]
    },
    "connected-hashmap-canonical": _CONNECTED,
    "connected-hashmap-native": _CONNECTED,
    "folding-rocksdb-canonical": {
        "folding": [
            ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()),
            AggregatingStateDescriptor("mean", Mean(), _PAIR),
            _month(ValueStateDescriptor("last", Types.LONG())),
            _month(ListStateDescriptor("log", Types.LONG())),
            _month(MapStateDescriptor("by", Types.STRING(), Types.LONG())),
        ]
    },
    "sources-hashmap-canonical": {
        "count": [ValueStateDescriptor("n", Types.LONG()), ValueStateDescriptor("last", Types.LONG())]
    },
    "sql-group-rocksdb-canonical": {},
    "timers-rocksdb-canonical": {"timers": _TIMERS},
    "values-hashmap-canonical": {
        "values": [
            ValueStateDescriptor("total", Types.LONG()),
            ValueStateDescriptor("name", Types.STRING()),
            ValueStateDescriptor(
                "pair",
                Types.ROW_NAMED(["n", "s", "list"], [Types.INT(), Types.STRING(), Types.LIST(Types.LONG())]),
            ),
            ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY()),
            ValueStateDescriptor("mean", Types.DOUBLE()),
            ValueStateDescriptor("odd", Types.BOOLEAN()),
        ]
    },
    "windows-hashmap-canonical": {
        "tumbling": [ListStateDescriptor("window-contents", _RECORD), _FIRED],
        "summed": [AggregatingStateDescriptor("window-contents", Mean(), _PAIR), _FIRED],
        "session": [
            ReducingStateDescriptor("window-contents", max, _RECORD),
            MapStateDescriptor("merging-window-set", _WINDOW, _WINDOW),
            _FIRED,
        ],
    },
}
"""Descriptors by uid, by savepoint."""


def expected(name: str) -> dict[str, Any]:
    """Returns what a savepoint holds, by uid."""
    return json.loads((SAVEPOINTS / name / "expected.json").read_text())["expected"]


def shown(value: Any) -> Any:
    """Returns a value as expected.json has it."""
    if isinstance(value, Row):
        return {"row": [shown(each) for each in value]}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    if isinstance(value, dict):
        return {str(name): shown(each) for name, each in value.items()}
    return value


def shown_key(key: Any) -> str:
    """Returns a key as expected.json has it."""
    return json.dumps(list(key)) if isinstance(key, tuple) else str(key)


def program(name: str, folder: Path, *arguments: str) -> StreamExecutionEnvironment:
    """Returns the job of a savepoint as a program of this library: only its imports and its end are other ones.

    Args:
        name: The savepoint.
        folder: Where it reads ``in/*.csv`` and writes ``out``.
        arguments: More arguments.
    """
    text = (SAVEPOINTS / name / "program.py").read_text()
    text = re.sub(r"^env\.execute\(.*\)$", "", text.replace("from pyflink", "from dagster_flinkpy"), flags=re.MULTILINE)
    arguments = ("--input", str(folder / "in"), "--out", str(folder / "out"), *arguments)
    module = types.ModuleType(f"corpus_{re.sub('[^a-z0-9]', '_', name)}")
    before, sys.argv = sys.argv, ["program.py", *arguments]
    try:
        exec(compile(text, f"{name}/program.py", "exec"), module.__dict__)
    finally:
        sys.argv = before
    env: StreamExecutionEnvironment = module.__dict__["env"]
    return env
