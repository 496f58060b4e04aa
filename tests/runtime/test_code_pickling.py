"""The names of the user's files travel with the code, whatever cloudpickle does with them."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
import pytest

from dagster_flinkpy import code_pickling


def functions() -> dict[str, Callable[[], Any]]:
    """Functions of kinds that are pickled by value; each raises an error."""

    class Local:
        def method(self) -> Any:
            return [1 / 0 for _ in range(1)]

        @staticmethod
        def static() -> Any:
            return 1 / 0

    def outer() -> Callable[[], Any]:
        def inner() -> Any:
            return 1 / 0

        return inner

    async def later() -> Any:
        return 1 / 0

    return {
        "lambda": lambda: 1 / 0,
        "method": Local().method,
        "static method": Local.static,
        "made when called": lambda: outer()(),
        "generator": lambda: sum(1 / number for number in (0,)),
        "coroutine": lambda: asyncio.run(later()),
    }


@pytest.fixture(params=["cloudpickle as it is", "all code is anonymous"])
def names_of_cloudpickle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    code_pickling._pickler.cache_clear()
    if request.param == "all code is anonymous":
        table = cloudpickle.Pickler.dispatch_table
        reduce_code = table[CodeType]
        monkeypatch.setitem(
            table, CodeType, lambda code: reduce_code(code.replace(co_filename="<dynamic-code>", co_name="f"))
        )
    request.addfinalizer(code_pickling._pickler.cache_clear)


@pytest.mark.usefixtures("names_of_cloudpickle")
@pytest.mark.parametrize("kind", list(functions()))
def test_tracebacks_show_files_and_lines(kind: str) -> None:
    function = pickle.loads(code_pickling.dumps(functions()[kind]))
    with pytest.raises(ZeroDivisionError) as raised:
        function()
    frames = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if "asyncio" not in frame.filename]
    assert {frame.filename for frame in frames} == {__file__}
    assert frames[-1].line is not None
    assert "1 /" in frames[-1].line


def test_a_pickle_can_be_pickled_again() -> None:
    function = pickle.loads(code_pickling.dumps(pickle.loads(code_pickling.dumps(functions()["lambda"]))))
    assert function.__code__.co_filename == __file__
