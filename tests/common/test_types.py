"""Row and RowKind behave as PyFlink's."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import pytest

from dagster_flinkpy.common import types
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row, RowKind, row_class, rows_of
from dagster_flinkpy.key_hashes import java_hash_code


def test_named_fields_keep_their_order() -> None:
    row = Row(name="Alice", age=11)
    assert (row.name, row["age"], row[0], row[-1], row[:1]) == ("Alice", 11, "Alice", 11, ["Alice"])
    assert (list(row), len(row), repr(row)) == (["Alice", 11], 2, "Row(name='Alice', age=11)")
    assert "name" in row
    assert "Alice" not in row


def test_positional_fields() -> None:
    row = Row("Alice", 11)
    assert (row[1], list(row), repr(row)) == (11, ["Alice", 11], "<Row('Alice', 11)>")
    assert "Alice" in row
    assert len(Row()) == 0


def test_all_classes_of_rows_have_the_same_name() -> None:
    for row in (Row("Alice"), Row(name="Alice")):
        assert (type(row).__name__, type(row).__qualname__) == ("Row", "Row")


def test_positional_and_named_fields_do_not_mix() -> None:
    with pytest.raises(ValueError, match="not both"):
        Row("Alice", age=11)


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")
    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert person("Alice").as_dict() == {"name": "Alice"}
    with pytest.raises(ValueError, match="2 fields, but got 3"):
        person("Alice", 11, 12)
    with pytest.raises(TypeError, match="not names"):
        Row("name", [1])("Alice", 11)


def test_any_keyword_is_a_field() -> None:
    row = Row(self=1, cls=2, mro=3, args=4, kwargs=5)
    assert (row.self, row.cls, row.mro, row.args, row.kwargs) == (1, 2, 3, 4, 5)
    row = Row(**{"a b": 1, "": 2, "_0": 3, "__class__": 4, "append": 5, "\0\ud800'": 6})
    assert [row[name] for name in ("a b", "", "_0", "__class__", "append", "\0\ud800'")] == [*row] == [1, 2, 3, 4, 5, 6]
    assert pickle.loads(pickle.dumps(row)) == row


def test_row_cannot_be_extended() -> None:
    with pytest.raises(TypeError, match="class Person cannot extend Row"):

        class Person(Row):
            pass


def test_rows_live_longer_than_their_class_is_remembered() -> None:
    row, names = Row(a=1, b=2), [f"n{i}" for i in range(2000)]
    for name in names:
        Row(**{name: 1, "b": 2})
    assert row_class.cache_info().currsize < len(names)
    again = Row(a=1, b=2)
    assert type(again) is not type(row)
    assert (again, hash(again), pickle.loads(pickle.dumps(row))) == (row, hash(row), again)
    row.set_row_kind(RowKind.DELETE)
    assert row == Row.of_kind(RowKind.DELETE, a=1, b=2)


def test_fields_are_set_by_position_and_name() -> None:
    row = Row(name="Alice", age=11)
    row["age"] = 12
    row[0] = "Bob"
    assert row == Row(name="Bob", age=12)
    row.age = 13
    row[:1] = ["Eve"]
    assert row == Row(name="Eve", age=13)
    with pytest.raises(AttributeError):
        row.size = 1
    with pytest.raises(ValueError, match="unpack"):
        row[:1] = []
    assert row == Row(name="Eve", age=13)


def test_unknown_fields() -> None:
    for row in (Row(name="Alice"), Row("Alice")):
        with pytest.raises(AttributeError, match="age"):
            _ = row.age
        with pytest.raises(ValueError, match="age"):
            row["age"]
    with pytest.raises(AttributeError, match=r"'Row\('name', 'size'\)' object has no attribute 'age'"):
        _ = Row(name="Alice", size=2).age
    with pytest.raises(AttributeError, match=r"^'Row\('order_id', .*'ordered\.\.\.\)' object has no attribute 'age'$"):
        _ = Row(order_id=1, customer="Alice", amount=2, ordered_at=3).age
    with pytest.raises(AttributeError, match="'Row without names' object"):
        _ = Row("Alice").age
        with pytest.raises(ValueError, match="age"):
            row["age"] = 1


def test_as_dict() -> None:
    row = Row(key=1, value=Row(name="a", age=2), more=[Row(x=1)], by_name={"r": Row(y=2)})
    assert row.as_dict()["value"] == Row(name="a", age=2)
    assert row.as_dict(True) == {
        "key": 1,
        "value": {"name": "a", "age": 2},
        "more": [{"x": 1}],
        "by_name": {"r": {"y": 2}},
    }
    with pytest.raises(TypeError, match="no field names"):
        Row(1).as_dict()


def test_field_names_can_be_set() -> None:
    row = Row("Alice", 11)
    row.set_field_names(("name", "age"))
    assert row == Row(name="Alice", age=11)
    assert row.get_fields_by_names(["age", "name"]) == [11, "Alice"]
    assert Row(1, 2).get_fields_by_names(["a", "b"]) == [1, 2]


def test_pyflink_programs_read_and_set_the_names() -> None:
    row = Row("Alice", 11)
    assert not hasattr(row, "_fields")
    row._fields = ["name", "age"]
    assert (row, row.age, row._fields) == (Row(name="Alice", age=11), 11, ["name", "age"])
    row._fields.append("more")
    assert Row(name="Bob", age=12)._fields == ["name", "age"]


def test_equality_takes_names_kind_and_values() -> None:
    assert Row(a=1) == Row(a=1)
    assert Row(a=1, b=2) == Row(b=2, a=1)
    assert {Row(a=1, b=2): "x"}[Row(b=2, a=1)] == "x"
    assert Row(a=1, b=2) != Row(b=1, a=2)
    assert Row(a=1, b=2) != Row(a=1, c=2)
    assert Row(a=1) != Row(b=1)
    assert Row(a=1) != Row(1)
    assert Row(1) != Row(2)
    assert Row(1) != (1,)
    assert Row(1) != Row.of_kind(RowKind.DELETE, 1)
    assert {Row(1, "a"): "x"}[Row(1, "a")] == "x"


def test_row_kinds() -> None:
    row = Row(1)
    assert row.get_row_kind() is RowKind.INSERT
    row.set_row_kind(RowKind.DELETE)
    assert row == Row.of_kind(RowKind.DELETE, 1)
    assert [str(kind) for kind in RowKind] == ["+I", "-U", "+U", "-D"]
    assert [kind.value for kind in RowKind] == [0, 1, 2, 3]


@pytest.mark.parametrize("row", [Row(), Row(1, None), Row(a=Row(2), b=b"x"), Row.of_kind(RowKind.UPDATE_AFTER, a=1)])
def test_copies_are_equal_and_hash_alike(row: Row) -> None:
    for same in (
        pickle.loads(pickle.dumps(row)),
        cloudpickle.loads(cloudpickle.dumps(row)),
        copy.copy(row),
        copy.deepcopy(row),
    ):
        assert same == row
        assert hash(same) == hash(row)
        assert java_hash_code(same) == java_hash_code(row)


def test_equal_rows_share_a_key_group() -> None:
    assert java_hash_code(Row("name", "age")("Alice", 11)) == java_hash_code(Row(name="Alice", age=11))


def test_rows_out_of_columns_make_rows_of_their_type() -> None:
    (row,) = rows_of(("name", "age"), [["Alice"], [11]], 1)
    assert type(row)("Bob", 12) == Row("Bob", 12)
    assert type(row)(name="Bob", age=12) == Row(name="Bob", age=12)


@pytest.mark.parametrize("width", [0, 1, 2, 40])
def test_rows_of_any_width(width: int) -> None:
    names = tuple(f"f{i}" for i in range(width))
    first, second = rows_of(names, [[i, i + 1] for i in range(width)], 2)
    assert (list(first), list(second)) == (list(range(width)), list(range(1, width + 1)))
    assert first.as_dict() == dict(zip(names, range(width), strict=True))
    assert [first[i] for i in range(-width, width)] == [*range(width)] * 2
    assert [getattr(second, name) for name in names] == [second[name] for name in names] == list(second)
    with pytest.raises(IndexError):
        first[width]


def test_names_need_not_match_the_fields() -> None:
    row = Row(1, 2)
    row.set_field_names(["a"])
    assert (row.a, row.as_dict(), len(row)) == (1, {"a": 1}, 2)
    row.set_field_names(["a", "a", "c"])
    assert (row.a, row["a"]) == (1, 1)
    with pytest.raises(IndexError):
        row["c"]
    row.set_field_names(["_private", "as_dict"])
    assert (row["_private"], row["as_dict"]) == (1, 2)
    assert row.as_dict() == {"_private": 1, "as_dict": 2}


def test_a_row_keeps_its_names_when_its_kind_changes_and_its_kind_when_its_names_do() -> None:
    row = Row(a=1)
    row.set_row_kind(RowKind.DELETE)
    row.set_field_names(["b"])
    assert (row, row.b) == (Row.of_kind(RowKind.DELETE, b=1), 1)
    (column_row,) = rows_of(("a",), [[1]], 1)
    column_row.set_row_kind(RowKind.DELETE)
    assert column_row == Row.of_kind(RowKind.DELETE, a=1)


def test_a_maker_of_rows_takes_values_in_order_or_by_name() -> None:
    for remembered in (types._makers.clear, types.row_maker.cache_clear, types.row_class.cache_clear):
        remembered()  # tests with many names have made some of them forget
    make = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()]).row
    assert make("Alice", 11) == make(age=11, name="Alice") == make("Alice", age=11) == Row(name="Alice", age=11)
    assert type(make("Alice", 11)) is type(Row(name="Alice", age=11))
    assert repr(make) == "<makes Row(name, age)>"
    assert pickle.loads(pickle.dumps(make)) is make
    for wrong in (lambda: make("Alice"), lambda: make("Alice", 11, 12), lambda: make("Alice", years=11)):
        with pytest.raises(TypeError, match=r"^row\(\) "):
            wrong()


@pytest.mark.parametrize("names", [["class", "a b"], ["self", "row"], ["_row_", "create"], ["a", "f"]])
def test_names_of_any_kind_can_be_made(names: list[str]) -> None:
    row = Types.ROW_NAMED(names, [Types.INT()] * 2).row(1, 2)
    assert row.as_dict() == dict(zip(names, [1, 2], strict=True))


def test_rows_without_fields_or_names_are_made() -> None:
    assert list(Types.ROW([]).row()) == []
    assert Types.ROW([Types.INT()]).row(1) == Row(f0=1)
