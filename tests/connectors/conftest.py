"""Fixtures for the tests of connectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool


@pytest.fixture(scope="package", autouse=True)
def statements_of_a_catalog_are_compiled_once() -> Iterator[None]:
    """Keeps the engine of each SQL catalog of Iceberg, and with it what SQLAlchemy has compiled, but no connection.

    A test opens its catalog ten times, and compiled the same statements each time.
    """
    from pyiceberg.catalog import sql

    make, kept = sql.create_engine, dict[str, Engine]()

    def create_engine(url: str, **options: Any) -> Engine:
        if url not in kept:
            kept[url] = make(url, **options, poolclass=NullPool)
        return kept[url]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "create_engine", create_engine)
        yield
