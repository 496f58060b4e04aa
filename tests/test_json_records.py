from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pytest

from dagster_flinkpy.errors import CorruptMetadataError, PathEscapesPrefixError
from dagster_flinkpy.json_records import ArrayRecord, Count, Json, JsonRecord, Millis, load_object


class Colour(Enum):
    RED = "red"


class Span(ArrayRecord, frozen=True):
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError("it ends before it starts")


@dataclass(frozen=True)
class Leaf(JsonRecord, omit_defaults=True):
    name: str
    span: Span
    data: bytes | None = None
    value: Json = None
    extra: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Tree(JsonRecord, error=CorruptMetadataError):
    """Knows no other fields, but its leaves do."""

    leaves: tuple[Leaf, ...]
    colour: Colour | None = None
    counts: tuple[Count, ...] = ()
    first: Leaf | None = None
    at: Millis = 0


LEAF = Leaf("a", Span(1, 2), b"\0\xff", {"x": [1, None]}, {"newer": {"b": 1}})
TREE = Tree((LEAF, Leaf("b", Span(0, 0))), Colour.RED, (1, 2), LEAF, 5)


@pytest.mark.parametrize("tree", [TREE, Tree(()), replace(TREE, colour=None, first=None)])
def test_what_is_written_is_read(tree: Tree) -> None:
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree
    assert Tree.from_json(load_object(tree.to_bytes())) == tree


def test_the_form_in_the_store() -> None:
    leaf = {"newer": {"b": 1}, "name": "a", "span": [1, 2], "data": "AP8=", "value": {"x": [1, None]}}
    second = {"name": "b", "span": [0, 0]}
    assert TREE.to_json() == {"leaves": [leaf, second], "colour": "red", "counts": [1, 2], "first": leaf, "at": 5}


def test_fields_that_are_not_known_are_kept_where_a_class_says_so() -> None:
    raw = {**TREE.to_json(), "added": 1}
    raw["leaves"][1] |= {"extra": 3, "added": [2]}
    read = Tree.from_json(raw)
    assert read.leaves[1].extra == {"extra": 3, "added": [2]}
    assert read.to_json() == TREE.to_json() | {"leaves": raw["leaves"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"leaves": 3}, r"\$\.leaves"),
        ({"leaves": [{"name": 1, "span": [1, 2]}]}, r"Expected `str`, got `int` - at `\$\.leaves\[0\]\.name`"),
        ({"leaves": [{"name": "a"}]}, "missing required field `span`"),
        ({"leaves": [{"name": "a", "span": [1]}]}, r"\$\.leaves\[0\]\.span"),
        ({"leaves": [{"name": "a", "span": [1, 2, 3]}]}, r"\$\.leaves\[0\]\.span"),
        ({"leaves": [{"name": "a", "span": [2, 1]}]}, r"it ends before it starts - at `\$\.leaves\[0\]\.span`"),
        ({"first": {"name": "a", "span": [1, 2], "data": "no base64!"}}, r"\$\.first\.data"),
        ({"colour": "blue"}, r"'blue' - at `\$\.colour`"),
        ({"counts": [1, True]}, r"\$\.counts\[1\]"),
        ({"counts": [1, 2.0]}, r"\$\.counts\[1\]"),
        ({"counts": ["1"]}, r"\$\.counts\[0\]"),
        ({"counts": [-1]}, r">= 0 - at `\$\.counts\[0\]`"),
        ({"counts": [2**63]}, r"\$\.counts\[0\]"),
        ({"at": 10**15}, r"<= 253402300799999 - at `\$\.at`"),
    ],
)
def test_the_error_is_typed_and_names_the_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(CorruptMetadataError, match=f"^not a stored Tree: .*{says}"):
        Tree.from_json({**TREE.to_json(), **change})


@pytest.mark.parametrize("raw", [None, [], "x", 3])
def test_what_is_no_object(raw: object) -> None:
    with pytest.raises(CorruptMetadataError, match="Expected `object`"):
        Tree.from_json(raw)
    with pytest.raises(ValueError, match="Expected `object`"):
        Leaf.from_json(raw)


def test_what_is_not_json_stays_so_and_is_not_written() -> None:
    for value in ({1}, b"x", Colour.RED, LEAF):
        with pytest.raises(TypeError, match="not JSON serializable"):
            replace(LEAF, value={"x": value}).to_bytes()


def test_names_of_files_that_are_not_text() -> None:
    odd = replace(LEAF, name="\udc80", value={"\udc80": "\udc80"})
    assert Leaf.from_json(load_object(odd.to_bytes())) == odd


def test_errors_of_other_kinds_pass() -> None:
    @dataclass(frozen=True)
    class Strict(JsonRecord, error=CorruptMetadataError):
        path: str

        def __post_init__(self) -> None:
            raise PathEscapesPrefixError(self.path)

    with pytest.raises(PathEscapesPrefixError):
        Strict.from_json({"path": "../x"})


def test_a_subclass_has_its_own_fields() -> None:
    @dataclass(frozen=True)
    class Longer(Leaf):
        more: int = 3

    LEAF.to_json()
    longer = Longer("a", Span(1, 2), more=4)
    assert longer.to_json() == {"name": "a", "span": [1, 2], "more": 4}
    assert Longer.from_json(longer.to_json()) == longer


def test_records_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(TREE)) == TREE


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 100_000, b"1" * 100_000])
def test_what_is_not_a_json_object(data: bytes) -> None:
    with pytest.raises(ValueError):
        load_object(data)


FIRST_READS = """
import sys, threading
from dataclasses import dataclass
from dagster_flinkpy.json_records import JsonRecord, Json

def read_at_once():
    @dataclass(frozen=True)
    class Inner(JsonRecord):
        a: int
        b: str | None = None

    @dataclass(frozen=True)
    class Outer(JsonRecord):
        one: int
        inner: Inner
        more: tuple[Inner, ...] = ()
        other: Json = None

    def work(number):
        met.wait()
        outer = {"one": 1, "inner": data, "more": [data]}
        found.append(Outer.from_json(outer).more[0] if number % 2 else Inner.from_json(data))

    data, met, found = {"a": 2, "b": "z"}, threading.Barrier(6), []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Inner(2, "z")] * 6, found

sys.setswitchinterval(1e-6)
for _ in range(100):
    read_at_once()
"""


def test_threads_may_read_a_record_for_the_first_time_at_once() -> None:
    """Without the lock, the process crashes."""
    subprocess.run([sys.executable, "-c", FIRST_READS], check=True)
