"""Loads the table of a sink into a downstream asset."""

import json
from collections.abc import Sequence
from typing import Any, cast

from dagster import ConfigurableIOManager, InputContext, OutputContext, ResourceDependency
from pydantic import Field

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.resources import SparkResource, storage_location

__all__ = ["FlinkTableIOManager"]

_FORMS = {
    ("pyarrow", "Table"): "arrow",
    ("pandas", "DataFrame"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("pyspark", "DataFrame"): "spark",
}


class FlinkTableIOManager(ConfigurableIOManager):
    """Loads the rows that a `ParquetSink` or `DeltaSink` has committed. The annotation of the input chooses the type.

    The types are ``pyarrow.Table`` (the default without an annotation), ``pandas.DataFrame``, ``polars.DataFrame`` and
    ``pyspark.sql.DataFrame``, whose rows Spark reads itself from Parquet files. From a partitioned table it loads the
    partitions on which the asset's partition depends, as one table. ``AssetIn(metadata={"columns": [...]})`` chooses
    columns.

    It stores nothing: sinks write the tables.

    Examples:
        .. code-block:: python

            import pyarrow as pa
            from dagster import AssetIn, Definitions, asset
            from dagster_flinkpy.orchestration import FlinkTableIOManager

            @asset(ins={"rows": AssetIn(["words", "table"], input_manager_key="flink_tables")})
            def longest_word(rows: pa.Table) -> str:
                return max(rows["f0"].to_pylist(), key=len)

            defs = Definitions(assets=[longest_word], resources={"flink_tables": FlinkTableIOManager()})
    """

    endpoint_url: str | None = Field(
        default=None, description="S3 server other than Amazon's, such as 'http://host:9000'."
    )
    region: str | None = Field(default=None, description="S3 region. Default: found by boto3.")
    access_key_id: str | None = Field(default=None, description="S3 access key. Default: credentials found by boto3.")
    secret_access_key: str | None = Field(default=None, description="S3 secret key. Required with access_key_id.")
    addressing_style: str | None = Field(
        default=None, description="'path' or 'virtual'. Default: path with endpoint_url, else found by boto3."
    )
    spark: ResourceDependency[SparkResource | None] = cast(Any, None)  # Dagster's type knows no default
    """The Spark that reads tables for inputs of type ``pyspark.sql.DataFrame``, which need it. Nothing else uses it."""

    def load_input(self, context: InputContext) -> Any:
        """Loads the table of the upstream asset.

        Raises:
            Failure: The upstream asset is not such a table, the annotation is not one of these types, a
                Spark DataFrame is wanted but `spark` is not set, or a file cannot be read.
        """
        with flink_failures():
            return self._load(context)

    def _load(self, context: InputContext) -> Any:
        from dagster_flinkpy.common.typeinfo import type_from_json
        from dagster_flinkpy.connectors.files.parquet_table import ParquetTable, table_schema

        form = _form(context.dagster_type.typing_type)
        if form == "spark" and self.spark is None:
            raise ConfigurationError(
                f"asset {context.asset_key.to_user_string()} is to be loaded as a Spark DataFrame, but its IO manager "
                "has no Spark: give it one, as in FlinkTableIOManager(spark=SparkResource())"
            )
        upstream = context.upstream_output
        facts = {} if upstream is None else upstream.definition_metadata or {}
        uri, record_type = (_text(facts.get(name)) for name in ("dagster/uri", "flink/record_type"))
        if uri is None or record_type is None:
            raise ConfigurationError(
                f"asset {context.asset_key.to_user_string()} is not the table of a ParquetSink or DeltaSink: its "
                "definition lacks 'dagster/uri' or 'flink/record_type', the metadata that flink_assets() gives to it"
            )
        partitions = context.asset_partition_keys if context.has_asset_partitions else None
        schema = table_schema(type_from_json(json.loads(record_type)))
        location = storage_location(self, uri)
        table: Any = ParquetTable(location, schema, partitions)
        if _text(facts.get("flink/table_format")) == "delta":
            from dagster_flinkpy.connectors.delta.table import DeltaRows

            table = DeltaRows(location, schema, partitions, _text(facts.get("flink/partition_column")))
        columns: Sequence[str] | None = (context.definition_metadata or {}).get("columns")
        if columns is not None:
            table = table.select(columns)
        if self.spark is not None and form == "spark":
            return table.to_spark(self.spark.get_session())
        rows = table.to_arrow()
        if form == "pandas":
            return rows.to_pandas()
        if form == "polars":
            import polars

            return polars.from_arrow(rows)
        return rows

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Refuses to store anything.

        Raises:
            Failure: Always.
        """
        with flink_failures():
            raise ConfigurationError(
                f"FlinkTableIOManager only loads tables, so it cannot store {context.get_identifier()}: write rows "
                "with a sink of the program, or give this asset another io_manager_key"
            )


def _form(wanted: Any) -> str:
    """Returns the type of an input. It is found by name, so that none of the libraries has to be imported."""
    if wanted is Any or wanted is None:
        return "arrow"
    root, name = getattr(wanted, "__module__", "").partition(".")[0], getattr(wanted, "__name__", str(wanted))
    if (form := _FORMS.get((root, name))) is None:
        raise ConfigurationError(
            f"a table cannot be loaded as {wanted}: annotate the input as pyarrow.Table, pandas.DataFrame, "
            "polars.DataFrame or pyspark.sql.DataFrame"
        )
    return form


def _text(value: Any) -> str | None:
    found = getattr(value, "value", value)
    return found if isinstance(found, str) else None
