"""There are no import cycles: not at run time, not inside functions, not for type checking."""

from __future__ import annotations

from collections.abc import Mapping, Set

import grimp
import pytest

LIBRARY = "dagster_flinkpy"


def cycles(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """Returns the sorted groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for imported in sorted(imports.get(module, ())):
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            start = stack.index(module)
            members, stack[start:] = stack[start:], []
            if len(members) > 1 or module in imports.get(module, ()):
                found.append(sorted(members))

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return found


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
        ({"a": {"a"}}, [["a"]]),
        ({"a": {"b", "c"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}, [["c", "d"], ["a", "b"]]),
    ],
)
def test_cycles_are_found(imports: dict[str, set[str]], expected: list[list[str]]) -> None:
    assert cycles(imports) == expected


def test_the_library_has_no_import_cycle() -> None:
    graph = grimp.build_graph(LIBRARY, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    assert cycles(imports) == []
