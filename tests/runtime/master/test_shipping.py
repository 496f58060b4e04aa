from __future__ import annotations

import builtins
import functools
import importlib
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeySelector
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.shipping import copies, dump_job, load_job, loaded_job
from dagster_flinkpy.spark import user_modules
from tests.runtime.harness import make_job
from tests.runtime.programs import environment

NAME, HELPER = "flinkpy_user_code", "flinkpy_user_helper"


@pytest.fixture
def user_code(tmp_path: Path) -> Iterator[ModuleType]:
    """Creates a module and another one that it uses. Both can be imported in this process only."""
    helper = f"""
        FACTOR, calls = 3, 0

        def times(value):
            return FACTOR * value

        def note():
            global calls
            calls += 1

        import {NAME} as user_code
    """
    code = f"""
        import enum
        import functools
        import json
        from typing import NewType, TypedDict
        import cloudpickle
        import pyarrow
        import {HELPER} as helper
        from dagster_flinkpy.common import Types
        from dagster_flinkpy.datastream import MapFunction
        from {HELPER} import times

        class Triple(MapFunction):
            def map(self, value):
                return json.loads(json.dumps(times(value)))

        def triple(value):
            return times(value)

        NOTHING = object()

        class Otherwise(MapFunction):
            def __init__(self, value=NOTHING):
                self.value = value

            def map(self, value):
                return value if self.value is NOTHING else self.value

        model, count = None, 0

        def counted(value):
            global count
            count += 1
            return count

        def loaded(value):
            return f"{{model}} of {{value}}"

        class Apply(MapFunction):
            def __init__(self, function):
                self.function = function

            def map(self, value):
                global model
                model = "model"
                return self.function(value)

        class Loader:
            @classmethod
            def load(cls):
                global model
                model = "model"

        class Kind:
            kinds = {{}}

            def __init_subclass__(cls):
                Kind.kinds[cls.__name__] = cls

        class Special(Kind):
            pass

        def load(value, default=NOTHING):
            Loader.load()
            return loaded(value) if default is NOTHING and Special is Kind.kinds["Special"] else value

        class Listed(MapFunction):
            all = []

            def __init__(self):
                self.all.append(self)

            def map(self, value):
                return value

        def made_counter():
            count = 0

            def add():
                nonlocal count
                count += 1

            return add, lambda: count

        @functools.lru_cache(maxsize=2)
        def cached(value):
            return cached(value - 1) + 1 if value else 0

        @functools.singledispatch
        def kind(value):
            return "other"

        @kind.register
        def _(value: int):
            return "int"

        class Event(TypedDict):
            number: int

        Number = NewType("Number", int)

        class Planet(enum.Enum):
            EARTH = (3, "blue")

            def __init__(self, place, colour):
                self.colour = colour

        class Moons:
            def __init_subclass__(cls, *, of):
                cls.of = of

        class Own(Moons, of="earth"):
            pass

        Own.__qualname__ = "Moons.Own"

        class Lazy:
            @functools.cached_property
            def three(self):
                return 3

        class Restored(MapFunction):
            def __init__(self, by_name):
                self.by_name = by_name

            def map(self, value):
                own = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[Planet].encode()
                earlier = cloudpickle.dumps(Planet.EARTH).replace(own, b"0" * len(own))
                column = pyarrow.array([earlier, self.by_name], pyarrow.binary())
                return [each is Planet.EARTH for each in Types.PICKLED_BYTE_ARRAY().from_arrow(column)]

        class Several(MapFunction):
            def __init__(self):
                self.add, self.count = made_counter()

            def map(self, value: Number) -> Event:
                self.add()
                before = helper.calls
                helper.note()
                same = helper.user_code.cached is cached
                event = Event(number=cached(value))
                moon = Own()
                return (
                    *(self.count(), helper.calls - before, same, event, kind(1), kind(""), Lazy().three),
                    *(Planet.EARTH.colour, moon.of, type(moon).__qualname__),
                )
    """
    (tmp_path / f"{HELPER}.py").write_text(textwrap.dedent(helper))
    (tmp_path / f"{NAME}.py").write_text(textwrap.dedent(code))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        yield importlib.import_module(NAME)
    for name in (NAME, HELPER):
        sys.modules.pop(name, None)


def dumped(function: Any, folder: Path) -> bytes:
    env = environment()
    env.from_collection([1], Types.LONG()).uid("numbers").map(function).uid("it")
    return dump_job(make_job(env.get_job_graph(), folder))


def test_a_program_in_use_is_not_kept_as_bytes(tmp_path: Path) -> None:
    data = dumped(str, tmp_path)
    before = sys.getrefcount(data)
    with loaded_job(data) as job:
        assert sys.getrefcount(data) == before
        assert sys.getrefcount(job) == 2  # this name, and the argument
    with loaded_job(data) as again:
        assert again.graph.vertices[0].uid == "numbers"


_WORKER = """
import sys
from dagster_flinkpy.runtime import shipping
from dagster_flinkpy.runtime.shipping import load_for_each, load_job
from dagster_flinkpy.datastream.operator_specs import as_callable
from dagster_flinkpy.datastream import MapFunction
data = sys.stdin.buffer.read()
jobs = load_for_each(load_job(data), data)
functions = [next(jobs).graph.vertex("it").spec.function for _ in range(3)]
[result] = {str(as_callable(each, MapFunction, "map")(14)) for each in functions}
print(result)
"""


def called_elsewhere(data: bytes) -> str:
    """Returns the output of the function for each subtask of a process that can import only installed packages."""
    done = subprocess.run([sys.executable, "-c", _WORKER], input=data, capture_output=True, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    "take",
    [
        lambda m: m.triple,
        lambda m: m.Triple(),
        lambda m: lambda value: m.triple(value),
        lambda m: functools.partial(m.triple),
    ],
    ids=["function", "function object", "lambda that calls it", "partial"],
)
def test_code_that_is_not_installed_travels_by_value(user_code: ModuleType, tmp_path: Path, take: Any) -> None:
    function = take(user_code)
    assert called_elsewhere(dumped(function, tmp_path)) == "42"


def test_methods_find_the_constants_of_their_module_in_attributes(user_code: ModuleType, tmp_path: Path) -> None:
    env = environment()
    env.from_collection([1], Types.LONG()).uid("numbers").map(user_code.Otherwise()).uid("it")
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        functions = [copy().graph.vertex("it").spec.function for _ in range(2)]
    assert [each.map(14) for each in functions] == [14, 14]
    assert functions[0] is not functions[1]


def test_methods_find_the_objects_of_the_functions_of_their_operator(tmp_path: Path) -> None:
    """On workers they had others: a comparison with a constant failed, and what a function wrote was not there."""
    nothing, noted = object(), dict[int, int]()

    class Noted:
        def read(self, value: int, default: object) -> object:
            return noted[value] if default is nothing else default

    def note(value: int, default: object = nothing) -> object:
        noted[value] = 3 * value
        return Noted().read(value, default)

    assert called_elsewhere(dumped(note, tmp_path)) == "42"


def test_functions_see_the_variables_that_methods_of_their_operator_set(user_code: ModuleType, tmp_path: Path) -> None:
    """Such as what ``open()`` loads, which a function reads that the object was given."""
    assert called_elsewhere(dumped(user_code.Apply(user_code.loaded), tmp_path)) == "model of 14"
    env = environment()
    env.from_collection([1], Types.LONG()).uid("numbers").map(user_code.Apply(user_code.loaded)).uid("it")
    vars(user_code)["__builtins__"] = builtins  # as in a script; other modules have its dictionary
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        functions = [copy().graph.vertex("it").spec.function for _ in range(2)]
    assert [each.map(7) for each in functions] == ["model of 7"] * 2
    assert functions[0].function is not functions[1].function
    assert vars(user_code)["__builtins__"] is builtins


def test_functions_see_what_a_class_method_sets_and_know_the_constants_and_classes_of_its_module(
    user_code: ModuleType, tmp_path: Path
) -> None:
    """The default of an argument was another object than the constant, and a class that its base listed another one."""
    assert called_elsewhere(dumped(user_code.load, tmp_path)) == "model of 14"
    env = environment()
    env.from_collection([1], Types.LONG()).uid("numbers").map(user_code.load).uid("it")
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        assert copy().graph.vertex("it").spec.function(7) == "model of 7"


def test_functions_share_cells_and_variables_of_modules_and_all_kinds_of_code_travel(
    user_code: ModuleType, tmp_path: Path
) -> None:
    """What one function set in an enclosing one, or in a module, the other did not see there."""
    expected = (1, 1, True, {"number": 14}, "int", "other", 3, "blue", "earth", "Moons.Own")
    assert called_elsewhere(dumped(user_code.Several(), tmp_path)) == str(expected)
    env = environment()
    env.from_collection([1], Types.LONG()).uid("numbers").map(user_code.Several()).uid("it")
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        assert [copy().graph.vertex("it").spec.function.map(14) for _ in range(2)] == [expected] * 2


def test_the_class_of_a_value_in_state_is_that_of_the_program(user_code: ModuleType, tmp_path: Path) -> None:
    """In the next run it was another one: isinstance() and ``is`` were false."""
    restored = user_code.Restored(pickle.dumps(user_code.Planet.EARTH))
    assert called_elsewhere(dumped(restored, tmp_path)) == str([True, True])


def test_operators_share_no_function_object_that_their_class_lists(user_code: ModuleType, tmp_path: Path) -> None:
    env, function = environment(), user_code.Listed()
    env.from_collection([1], Types.LONG()).uid("numbers").map(function).uid("one").map(function).uid("other")
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        functions = [
            graph.vertex(uid).spec.function for graph in (copy().graph, copy().graph) for uid in ("one", "other")
        ]
    assert len({id(each) for each in [*functions, function]}) == 5


def test_a_function_that_sets_a_variable_sets_it_for_its_operator_only(user_code: ModuleType, tmp_path: Path) -> None:
    env = environment()
    numbers = env.from_collection([1], Types.LONG()).uid("numbers")
    numbers.map(user_code.counted).uid("one").map(user_code.counted).uid("other")
    numbers.map(user_code.Apply(user_code.loaded)).uid("it")
    with copies(make_job(env.get_job_graph(), tmp_path)) as copy:
        graph = copy().graph
    assert [graph.vertex(uid).spec.function(7) for uid in ("one", "other", "one")] == [1, 1, 2]


def test_code_that_operators_share_travels_once_but_they_share_no_object(user_code: ModuleType, tmp_path: Path) -> None:
    env, function = environment(), user_code.Triple()
    stream = env.from_collection([1], Types.LONG()).uid("numbers")
    for uid in "abc":
        stream = stream.map(function).uid(uid)
    data = dump_job(make_job(env.get_job_graph(), tmp_path))
    functions = [load_job(data).graph.vertex(uid).spec.function for uid in "abc"]
    assert len({id(each) for each in functions}) == 3
    assert data.count(b"FACTOR") == dumped(function, tmp_path).count(b"FACTOR")


def test_operators_before_a_union_have_each_their_own_key_selector(tmp_path: Path) -> None:
    """They opened and closed the same one."""

    class Itself(KeySelector):
        def get_key(self, value: int) -> int:
            return value

    env = environment()
    a, b = (env.from_collection([1], Types.LONG()).uid(uid) for uid in "ab")
    keyed = a.union(b).key_by(Itself(), Types.LONG())
    for uid in "cd":
        keyed.reduce(max).uid(uid)
    edges = load_job(dump_job(make_job(env.get_job_graph(), tmp_path))).graph.edges
    assert len({(edge.source, id(edge.partitioner.selector)) for edge in edges}) == 2
    assert len({id(edge.partitioner.selector) for edge in edges}) == 2


def test_a_class_stays_as_it_is_where_it_is_from(user_code: ModuleType, tmp_path: Path) -> None:
    load_job(dumped(user_code.Triple(), tmp_path))
    user_code.times = str
    assert user_code.Triple().map(7) == "7"


def test_installed_code_travels_by_reference(tmp_path: Path) -> None:
    job = load_job(dumped(textwrap.dedent, tmp_path))
    assert job.graph.vertex("it").spec.function is textwrap.dedent


def test_packages_of_another_environment_travel_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "flinkpy_shared.py").write_text("def identity(value):\n    return value\n")
    monkeypatch.syspath_prepend(str(folder))
    for cached in (user_modules._installed_folders, user_modules._is_installed):
        cached.cache_clear()
    identity = importlib.import_module("flinkpy_shared").identity
    assert load_job(dumped(identity, tmp_path)).graph.vertex("it").spec.function is identity


def test_the_library_travels_by_reference(tmp_path: Path) -> None:
    job = load_job(dumped(make_job, tmp_path))
    assert type(job.graph.vertex("it").spec).__module__ == "dagster_flinkpy.datastream.operator_specs"


def test_nothing_stays_registered(user_code: ModuleType, tmp_path: Path) -> None:
    import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    dumped(user_code.triple, tmp_path)
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"operator 'it' \(Map\), .*cannot be sent.*lock"):
        dumped(lambda value: lock, tmp_path)
