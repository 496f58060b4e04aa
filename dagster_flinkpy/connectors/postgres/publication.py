"""The publication of a source of changes: what it must publish, and whether somebody has changed it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors, sql

from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["Publication"]

# Row filters, column lists and schemas came with PostgreSQL 15.
_PUBLISHED = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
  (SELECT to_jsonb(t) FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
   JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
   WHERE t.pubname = p.pubname AND c.oid = %(oid)s)
FROM pg_publication p WHERE pubname = %(name)s
"""
# Each change of a row of a catalog makes a version of it, with another xmin.
_MARK = """
SELECT concat_ws(' ', p.oid, p.xmin, puballtables,
  (SELECT string_agg(concat_ws('.', r.prrelid, r.oid, r.xmin), ' ' ORDER BY r.oid) FROM pg_publication_rel r
   WHERE r.prpubid = p.oid AND r.prrelid IN ({family})){schemas})
FROM pg_publication p WHERE pubname = %(name)s
"""
_SCHEMAS = """,
  (SELECT string_agg(concat_ws('.', s.pnnspid, s.oid, s.xmin), ' ' ORDER BY s.oid)
   FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
   WHERE s.pnpubid = p.oid AND c.oid IN ({family}))"""
_FAMILY = "SELECT %(oid)s::oid UNION SELECT relid::oid FROM pg_partition_ancestors(%(oid)s) AS of_table (relid)"


class Publication:
    """Creates and checks the publication of a source."""

    def __init__(self, source: PostgresChangeSource, connection: psycopg.Connection[Any], table: str) -> None:
        self._source, self._connection, self._table = source, connection, table
        self.name = source.publication
        self._shown = sql.Identifier(self.name).as_string(connection)
        self._create = f"CREATE PUBLICATION {self._shown} FOR TABLE {table} WITH (publish_via_partition_root = true)"

    def create(self, oid: int) -> None:
        if self.mark(oid) is None:
            try:
                self._connection.execute(self._create.encode())
            except errors.InsufficientPrivilege as error:
                raise ConfigurationError(
                    f"this role may not create publication {self.name!r} ({str(error).strip()}): let the owner of the "
                    f"table run {self._create}"
                ) from error
        elif (repair := self.repair(oid)) is not None:
            raise ConfigurationError(
                f"publication {self.name!r} does not publish all changes of table {self._table}. Put it right: {repair}"
            )

    def repair(self, oid: int) -> str | None:
        """Returns the statements that make it publish all changes of the table, or None if it does."""
        values = {"oid": oid, "name": self.name}
        found = self._connection.execute(_PUBLISHED.encode(), values).fetchone()
        if found is None:
            return self._create
        whole, via_root, entry = found
        alter = f"ALTER PUBLICATION {self._shown}"
        if entry is None:
            return f"{alter} ADD TABLE {self._table}"
        listed, wanted = entry.get("attnames"), self._source.table_type.field_names
        if entry.get("rowfilter") is not None or (listed is not None and not set(wanted) <= set(listed)):
            return f"BEGIN; {alter} DROP TABLE {self._table}; {alter} ADD TABLE {self._table}; COMMIT"
        if not via_root and self._partitioned(oid):
            return f"{alter} SET (publish_via_partition_root = true)"
        return None if whole else f"{alter} SET (publish = 'insert, update, delete, truncate')"

    def mark(self, oid: int) -> str | None:
        """Returns what is another one after each change of the publication that concerns the table.

        The changes may be made and taken back: the mark stays another one. None: there is no publication.
        """
        schemas = _SCHEMAS if self._connection.info.server_version >= 150_000 else ""
        statement = _MARK.replace("{schemas}", schemas).replace("{family}", _FAMILY)
        found = self._connection.execute(statement.encode(), {"oid": oid, "name": self.name}).fetchone()
        return None if found is None else str(found[0])

    def _partitioned(self, oid: int) -> bool:
        statement = "SELECT relkind = 'p' OR relispartition FROM pg_class WHERE oid = %s"
        found = self._connection.execute(statement, [oid]).fetchone()
        return found is not None and bool(found[0])
