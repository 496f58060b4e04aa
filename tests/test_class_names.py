"""A class name stands for one thing in the whole library."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import dagster_flinkpy

ROOT = Path(dagster_flinkpy.__file__).parent
TWICE_IN_FLINK = {
    "Source": "pyflink.datastream.connectors.base: what env.from_source() takes; api.connector.source: FLIP-27",
    "SplitEnumerator": "likewise: of such a source, and of FLIP-27",
    "SplitEnumeratorContext": "likewise",
}


def test_class_names_are_unique_except_where_flink_has_a_name_twice() -> None:
    found = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 1000
    assert {name: paths for name, paths in found.items() if len(paths) > 1}.keys() == TWICE_IN_FLINK.keys()
