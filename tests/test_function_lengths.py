"""Functions, modules and folders stay short enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dagster_flinkpy

LIBRARY = Path(dagster_flinkpy.__file__).parent
MOST_LINES = 60
MOST_LINES_OF_A_MODULE = 600
MOST_MODULES = 30


def long_functions(source: str) -> Iterator[str]:
    """Yields the functions with too many lines. Docstrings do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, last = node.body[0], node.end_lineno or 0
            docstring = 0
            if ast.get_docstring(node) is not None:
                docstring = (first.end_lineno or 0) - first.lineno + 1
            if last - node.lineno + 1 - docstring > MOST_LINES:
                yield node.name


def test_long_functions_are_found() -> None:
    lines = "\n".join(["    x = 1"] * 59)
    assert list(long_functions(f"def short():\n{lines}\n")) == []
    assert list(long_functions(f"def long():\n    y = 2\n{lines}\n")) == ["long"]
    assert list(long_functions(f'def documented():\n    """A.\n\n    B."""\n{lines}\n')) == []


def test_no_function_has_more_than_sixty_lines() -> None:
    found = {
        f"{path.relative_to(LIBRARY)}: {name}"
        for path in LIBRARY.rglob("*.py")
        for name in long_functions(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_no_module_has_six_hundred_lines() -> None:
    lines = {path.relative_to(LIBRARY): path.read_text(encoding="utf-8").count("\n") for path in LIBRARY.rglob("*.py")}
    assert {str(path): count for path, count in lines.items() if count >= MOST_LINES_OF_A_MODULE} == {}


def test_folders_have_at_most_thirty_modules() -> None:
    folders = {folder: len(list(folder.glob("*.py"))) for folder in LIBRARY.rglob("*") if folder.is_dir()}
    assert {str(each.relative_to(LIBRARY)) for each, count in folders.items() if count > MOST_MODULES} == set()
