"""None is no row and no tuple. As in PyFlink, it is a value of the other types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream import DataStream, KeyedProcessFunction, OutputTag, ProcessFunction
from dagster_flinkpy.errors import TypeMismatchError
from tests.runtime.harness import collect_all
from tests.runtime.programs import environment, events

ROW = Types.ROW_NAMED(["a"], [Types.LONG()])
TAG = OutputTag("aside", ROW)


class Process(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield None


class KeyedProcess(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield None


class Aside(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield TAG, None


FORMS: dict[str, Callable[[DataStream, TypeInformation], DataStream]] = {
    "map": lambda stream, kind: stream.map(lambda e: None, kind),
    "flat_map": lambda stream, kind: stream.flat_map(lambda e: [None], kind),
    "process": lambda stream, kind: stream.process(Process(), kind),
    "keyed process": lambda stream, kind: stream.key_by("key").process(KeyedProcess(), kind),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [ROW, Types.TUPLE([Types.LONG()])], ids=repr)
@pytest.mark.parametrize("chained", [False, True])
def test_none_instead_of_a_row_is_refused(tmp_path: Path, form: str, kind: TypeInformation, chained: bool) -> None:
    stream = FORMS[form](events(environment(), [("a", 1, 1)]), kind).uid("makes-none")
    stream = stream.map(lambda e: e, kind) if chained else stream
    with pytest.raises(TypeMismatchError, match=r"operator 'makes-none': a record is None instead of .*filter\(\)"):
        collect_all(stream, tmp_path)


def test_none_in_a_side_output_is_refused(tmp_path: Path) -> None:
    stream = events(environment(), [("a", 1, 1)]).process(Aside(), ROW).uid("makes-none")
    with pytest.raises(TypeMismatchError, match="operator 'makes-none': a record is None"):
        collect_all(stream.get_side_output(TAG), tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [Types.PICKLED_BYTE_ARRAY(), Types.LONG(), Types.LIST(Types.LONG())], ids=repr)
def test_none_is_a_value_of_other_types(tmp_path: Path, form: str, kind: TypeInformation) -> None:
    stream = FORMS[form](events(environment(), [("a", 1, 1)]), kind)
    assert collect_all(stream, tmp_path) == [None]
