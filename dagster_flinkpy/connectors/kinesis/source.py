"""A stream of Kinesis as a source."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_name
from dagster_flinkpy.common.serialization import DeserializationSchema
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.sources.declared_source import DeclaredSource
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["KinesisSource"]

_STARTS = ("trim_horizon", "latest")
_AFTER_EXPIRY = ("fail", "trim_horizon")


class KinesisSource(DeclaredSource):
    """Reads records of a Kinesis stream. Credentials are those that boto3 finds.

    A shard is read by one subtask, in its order, and the shards that a split or a merge has made only after their
    parents. Before each epoch the driver reads up to the end of each shard, because Kinesis does not tell where that
    is; tasks read exactly the same records. So each record is fetched twice.

    The time at which a record arrived is its event time, unless the watermark strategy has an assigner.

    Args:
        stream: The name of the stream, or its ARN.
        schema: What becomes of the data of a record, such as ``SimpleStringSchema()``.
        starting: Where a job without a checkpoint begins: ``trim_horizon``, the oldest record; ``latest``, when the
            first epoch is planned; or a time, which needs a time zone.
        bounded: Whether the input ends with the records that have arrived when the first epoch is planned. Default: it
            ends if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_records_per_epoch: Maximum number of records between two barriers, over all shards. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes, likewise. An epoch reads at least one record of each shard.
        after_expiry: What to do if records that were not read may be gone: ``fail``, or ``trim_horizon``, which
            continues with the oldest record and logs a warning.
        region: The region. Default: that of the environment.
        endpoint_url: The address of another server than Amazon's. Default: Amazon's.

    Raises:
        ConfigurationError: An argument cannot work.
    """

    registered: ClassVar[str] = "kinesis"
    dagster_kind = "kinesis"
    splits_side_by_side = True
    resumes_splits = counts_records = True

    def __init__(
        self,
        stream: str,
        schema: DeserializationSchema,
        *,
        starting: str | datetime = "trim_horizon",
        bounded: bool | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        after_expiry: str = "fail",
        region: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        check_name("KinesisSource() as stream", stream)
        check_argument("KinesisSource()", schema, DeserializationSchema, "a DeserializationSchema")
        if isinstance(starting, datetime):
            if starting.tzinfo is None:
                raise ConfigurationError(f"starting={starting} of KinesisSource() needs a time zone")
        elif starting not in _STARTS:
            raise ConfigurationError(f"starting={starting!r} of KinesisSource() must be a time or one of {_STARTS}")
        if after_expiry not in _AFTER_EXPIRY:
            raise ConfigurationError(f"after_expiry={after_expiry!r} of KinesisSource() must be one of {_AFTER_EXPIRY}")
        self.stream, self.schema, self.starting, self.bounded = stream, schema, starting, bounded
        self.limits = EpochLimits.checked("KinesisSource()", max_records_per_epoch, max_bytes_per_epoch)
        self.after_expiry, self.region, self.endpoint_url = after_expiry, region, endpoint_url

    @property
    def produced_type(self) -> TypeInformation:
        return self.schema.get_produced_type()
