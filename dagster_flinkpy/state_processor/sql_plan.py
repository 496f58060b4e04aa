"""What a query over state has to read: which tables, columns and keys, as far as its syntax tree is certain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["QueryPlan", "plan_query"]

_ANY_COLUMN = ("STAR", "POSITIONAL_REFERENCE", "SHOW_REF", "PIVOT")
"""Classes and types of nodes that may stand for columns that they do not name."""

_PLAIN_TABLE = {"type", "alias", "query_location", "query_location_length", "catalog_name", "schema_name", "table_name"}
_PLAIN_TABLE |= {"qualified_name"}
"""Properties of a table that is not sampled and whose columns are not renamed."""

_STRUCTS = {"key", "value", "namespace", "map_key"}
"""Columns that may be structs."""

_PLAIN_TYPES = {"INTEGER", "BIGINT", "VARCHAR"}
"""DuckDB's types of whole numbers and text."""


@dataclass(frozen=True)
class QueryPlan:
    """What a query reads."""

    tables: frozenset[tuple[str, str]]
    """Schema, or nothing, and name of each table."""
    _words: frozenset[str] | None
    """All words of the query, in lower case; None if it may use columns that it does not name."""
    keys: tuple[int | str, ...] | None
    """The keys that all rows of the result have; None: any."""

    def columns(self, names: list[str]) -> list[str]:
        """Returns the columns of a table that the query may use: at least one."""
        if self._words is None:
            return names
        return [name for name in names if name.lower() in self._words] or names[:1]


def plan_query(tree: Any) -> QueryPlan:
    """Finds out what a query reads.

    Args:
        tree: What DuckDB's ``json_serialize_sql`` says, without empty and null values. Of a node that is not known,
            nothing is concluded, so the plan reads more than necessary.
    """
    nodes = list(_nodes(tree))
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    plain = all(node.keys() <= _PLAIN_TABLE for node in tables)
    named = {name.lower() for node in tables for name in (node.get("alias"), node["table_name"]) if name}
    whole_rows = any(
        columns[-1].lower() in named for node in nodes if (columns := node.get("column_names")) and columns[-1]
    )
    unnamed = any(
        node.get("class") in _ANY_COLUMN
        or node.get("type") in _ANY_COLUMN
        or node.get("ref_type", "REGULAR") not in ("REGULAR", "CROSS")
        for node in nodes
    )
    words = frozenset(_words(tree)) if plain and not whole_rows and not unnamed else None
    statements = tree["statements"]
    single = plain and len(tables) == len(statements) == 1
    return QueryPlan(
        frozenset((node.get("schema_name", ""), node["table_name"]) for node in tables),
        words,
        _keys_of(statements[0]["node"]) if single else None,
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _words(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree.lower()
    elif isinstance(tree, (dict, list)):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _words(each)


def _keys_of(select: dict[str, Any]) -> tuple[int | str, ...] | None:
    """Returns the keys that the condition of a plain SELECT allows."""
    table = select.get("from_table", {})
    if select.get("type") != "SELECT_NODE" or table.get("type") != "BASE_TABLE" or select.get("sample"):
        return None
    name, schema = table["table_name"].lower(), table.get("schema_name", "").lower()
    alias = table.get("alias", "").lower()
    prefixes: list[tuple[str, ...]] = [(alias,)] if alias else [(name,), (schema, name)]
    # A field `key` of a struct looks like the key of a table that is called like the struct.
    names = [(*prefix, "key") for prefix in prefixes if prefix[0] not in _STRUCTS]
    return _allowed(select.get("where_clause", {}), {("key",), *names})


def _allowed(condition: dict[str, Any], key: set[tuple[str, ...]]) -> tuple[int | str, ...] | None:
    kind, children = condition.get("type"), condition.get("children", [])
    if kind == "CONJUNCTION_AND":
        return next((keys for child in children if (keys := _allowed(child, key)) is not None), None)
    if kind == "COMPARE_EQUAL":
        children = [condition["left"], condition["right"]]
        if not _is_key(children[0], key):
            children.reverse()
    elif kind != "COMPARE_IN":
        return None
    if len(children) < 2 or not _is_key(children[0], key):
        return None
    found = [literal for child in children[1:] if (literal := _literal(child)) is not None]
    return tuple(found) if len(found) == len(children) - 1 else None


def _is_key(node: dict[str, Any], key: set[tuple[str, ...]]) -> bool:
    return tuple(name.lower() for name in node.get("column_names", ())) in key


def _literal(node: dict[str, Any]) -> int | str | None:
    """Returns a whole number or text; None for anything else. DuckDB 1 and 2 write them in different ways."""
    if node.get("class") != "CONSTANT":
        return None
    literal, value = node.get("literal", {}), node.get("value", {})
    if literal.get("kind") == "INTEGER":
        return int(literal["text"])
    if literal.get("kind") == "STRING":
        return str(literal.get("text", ""))
    kind = value.get("type", {}).get("id")
    plain = value.get("value", "" if kind == "VARCHAR" and not value.get("is_null") else None)  # empty: left out
    return plain if type(plain) in (int, str) and kind in _PLAIN_TYPES else None
