"""A Dagster asset as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_count
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.sources.declared_source import RowSource
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AssetSource", "Materialization"]


@dataclass(frozen=True)
class Materialization:
    """A materialization of an asset, which is read. It is the same each time it is read."""

    asset_key: tuple[str, ...]
    partition_key: str | None
    run_id: str
    data_version: str | None
    timestamp: float
    """Seconds since 1970."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Texts, paths, URLs, numbers, booleans and JSON of the event's metadata."""

    @staticmethod
    def of_split(split: SourceSplit) -> Materialization:
        """Returns what a split of an `AssetSource` reads."""
        properties = split.properties
        return Materialization(
            tuple(properties["asset"]),
            properties["partition"],
            properties["run_id"],
            properties["data_version"],
            properties["timestamp"],
            properties["metadata"],
        )


class AssetSource(RowSource):
    """Reads what an asset upstream in Dagster contains. Each new materialization is a split.

    The first epoch reads the latest materialization; of a partitioned asset, the latest of each partition. After that:

    - An asset without partitions: each new materialization is read, in their order. ``load`` must return what *this*
      materialization has written. If each one replaces the data of the one before, ``load`` must refuse what is gone.
    - A partitioned asset: each partition is read once. If it is materialized again with another data version, after it
      was read or while it is read, that is a `SourceReadError`: its rows would count twice.

    The asset becomes an upstream asset of the source, as with ``deps`` of `flink_assets`.

    Example::

        from dagster_flinkpy.common import Types
        from dagster_flinkpy.connectors import AssetSource

        def load(materialization):
            import pyarrow.parquet as pq

            return pq.read_table(materialization.metadata["path"])

        orders = AssetSource("orders", load, Types.ROW_NAMED(["id"], [Types.LONG()]))

    Args:
        asset_key: The asset: its key as a text with slashes, as a sequence of texts, or a Dagster ``AssetKey``.
        load: Is called in a subtask with a `Materialization`, and returns its rows: a ``pyarrow.Table`` or record
            batch, a pandas DataFrame, or an iterable of rows. It must return the same rows each time.
        row_type: The columns, by name.
        bounded: Whether the input ends with the materializations that exist when an epoch is planned. Default: it ends
            if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_materializations_per_epoch: Maximum number of materializations between two barriers, oldest first. Default:
            all that exist.

    Raises:
        ConfigurationError: An argument has the wrong type, or is not positive.
    """

    registered: ClassVar[str] = "asset"
    dagster_kind = "dagster"

    discovery_interval = timedelta(seconds=5)

    def __init__(
        self,
        asset_key: str | Sequence[str],
        load: Callable[[Materialization], Any],
        row_type: RowTypeInfo,
        *,
        bounded: bool | None = None,
        max_materializations_per_epoch: int | None = None,
    ) -> None:
        path = getattr(asset_key, "path", asset_key)
        key = tuple(path.split("/") if isinstance(path, str) else path if isinstance(path, Sequence) else ())
        if not key or not all(isinstance(part, str) and part for part in key):
            raise ConfigurationError(f"AssetSource() needs the key of an asset, not {asset_key!r}")
        if not callable(load):
            raise ConfigurationError(f"AssetSource() needs a function that loads a materialization, not {load!r}")
        check_argument("row_type of AssetSource()", row_type, RowTypeInfo, "Types.ROW_NAMED(...)")
        check_has_scale(row_type, f"row_type of the source of asset {'/'.join(key)}")
        if max_materializations_per_epoch is not None:
            most = max_materializations_per_epoch
            check_count("AssetSource()", "max_materializations_per_epoch", most, "materializations")
        self.asset_key, self.load, self.bounded = key, load, bounded
        self.max_materializations_per_epoch = max_materializations_per_epoch
        self._row_type = row_type

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        rows, where = self.load(Materialization.of_split(split)), f"load() of asset {'/'.join(self.asset_key)}"
        columns: Iterator[pa.Array] = call_registered("columns_of_rows", rows, self._row_type, where)
        count = 0
        for column in columns:
            count += len(column)
            yield column, count

    def upstream_assets(self) -> Sequence[Sequence[str]]:
        return [self.asset_key]
