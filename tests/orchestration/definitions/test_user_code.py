"""What Dagster shows of the user's code: links to it, and its docstrings. Nothing of the library's."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AnchorBasedFilePathMapping,
    AssetsDefinition,
    CodeReferencesMetadataValue,
    LocalFileCodeReference,
    UrlCodeReference,
    link_code_references_to_git,
    with_source_code_references,
)

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.orchestration import build_flink_asset_specs, flink_assets

PAIR = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])


class Louder(MapFunction):
    """Writes a word in capitals.

    This paragraph is too long for a description.
    """

    def map(self, value: Any) -> Any:
        return value


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


@dataclass
class Settings(MapFunction):
    times: int

    def map(self, value: Any) -> Any:
        return value


def shorter(value: Any, by: int) -> Any:
    """Cuts a word."""
    return value


def program() -> StreamExecutionEnvironment:
    """Counts words.

    More than that, it shouts.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    source = CollectionSource([["a", 1]], PAIR)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    rows.map(Louder(), PAIR).uid("louder").map(Settings(2), PAIR).uid("settings")
    rows.key_by("word").map(Louder(), PAIR).uid("keyed")
    rows.key_by("word").process(Silent(), PAIR).uid("silent")
    rows.map(functools.partial(shorter, by=1), PAIR).uid("shorter").map(str.upper).uid("python")
    sums = rows.key_by("word").sum("n").uid("sums")
    sums.sink_to(ParquetSink("/tmp/none")).uid("table").set_description("All words.")
    sums.sink_to(ParquetSink("/tmp/other")).uid("other")
    return env


@pytest.fixture(scope="module")
def assets() -> AssetsDefinition:
    [assets] = flink_assets(program, name="words")
    return assets


def links(assets: Any, uid: str) -> list[Any]:
    (spec,) = (spec for spec in assets.specs if spec.key.path[-1] == uid)
    value = spec.metadata["dagster/code_references"]
    assert isinstance(value, CodeReferencesMetadataValue)
    return list(value.code_references)


def line_of(reference: Any) -> str:
    assert isinstance(reference, LocalFileCodeReference)
    assert reference.file_path == __file__
    assert reference.line_number is not None
    return linecache.getline(reference.file_path, reference.line_number).strip()


def test_descriptions_are_the_users_docstrings_and_never_the_librarys(assets: AssetsDefinition) -> None:
    found = {spec.key.path[-1]: spec.description for spec in assets.specs}
    assert found == {
        "rows": "rows (source)",
        "louder": "Writes a word in capitals.",
        "settings": "Map (map)",
        "keyed": "Writes a word in capitals.",
        "silent": "KeyedProcess (keyed process)",
        "shorter": "Cuts a word.",
        "python": "Map (map)",
        "sums": "Sum (reduce)",
        "table": "All words.",
        "other": "Sink (sink)",
    }


def test_the_step_has_the_docstring_of_the_program(assets: AssetsDefinition) -> None:
    assert assets.op.description == "Counts words."


@pytest.mark.parametrize(
    ("uid", "lines"),
    [
        ("rows", ['rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")']),
        (
            "keyed",
            ['rows.key_by("word").map(Louder(), PAIR).uid("keyed")', "class Louder(MapFunction):"],
        ),
        (
            "silent",
            ['rows.key_by("word").process(Silent(), PAIR).uid("silent")', "class Silent(KeyedProcessFunction):"],
        ),
        (
            "shorter",
            [
                'rows.map(functools.partial(shorter, by=1), PAIR).uid("shorter").map(str.upper).uid("python")',
                "def shorter(value: Any, by: int) -> Any:",
            ],
        ),
        ("sums", ['sums = rows.key_by("word").sum("n").uid("sums")']),
        ("other", ['sums.sink_to(ParquetSink("/tmp/other")).uid("other")']),
    ],
)
def test_links_lead_to_the_line_of_the_program_and_to_the_functions(
    assets: AssetsDefinition, uid: str, lines: list[str]
) -> None:
    assert [line_of(each) for each in links(assets, uid)] == lines


def test_a_table_links_to_the_functions_of_the_operators_that_it_hides() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([["a", 1]], PAIR).uid("rows")
    rows.map(Louder(), PAIR).uid("louder").sink_to(ParquetSink("/tmp/none")).uid("table")
    *_, table = build_flink_asset_specs(env, name="words", show="tables")
    labels = [each.label for each in table.metadata["dagster/code_references"].code_references]
    assert labels == ["table in the program", "Louder"], "both operators are declared in one line"


def test_dagster_adds_the_function_that_builds_the_program(assets: AssetsDefinition) -> None:
    [linked] = with_source_code_references([assets])
    for spec in assets.specs:
        *_, last = links(linked, spec.key.path[-1])
        assert line_of(last) == "def program() -> StreamExecutionEnvironment:"


def test_a_program_that_is_built_already_is_where_its_first_operator_is() -> None:
    [linked] = with_source_code_references(flink_assets(program(), name="words"))
    *_, last = links(linked, "sums")
    assert last.file_path == __file__
    lines, start = inspect.getsourcelines(program)
    assert start <= last.line_number < start + len(lines)


def test_links_to_git_lead_to_the_users_files(assets: AssetsDefinition) -> None:
    [linked] = link_code_references_to_git(
        with_source_code_references([assets]),
        git_url="https://github.com/acme/words",
        git_branch="main",
        file_path_mapping=AnchorBasedFilePathMapping(Path(__file__), "pipelines/words.py"),
    )
    found = links(linked, "keyed")
    assert len(found) == 3
    for each in found:
        assert isinstance(each, UrlCodeReference)
        assert each.url.startswith("https://github.com/acme/words/tree/main/pipelines/words.py#L")


def test_code_that_is_typed_into_a_console_has_no_links() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(inspect.getsource(inspect.getmodule(program)), "<stdin>", "exec"), names)  # type: ignore[arg-type]
    [assets] = flink_assets(names["program"], name="words")
    assert not any("dagster/code_references" in spec.metadata for spec in assets.specs)
    assert {spec.key.path[-1]: spec.description for spec in assets.specs}["louder"] == "Writes a word in capitals."
