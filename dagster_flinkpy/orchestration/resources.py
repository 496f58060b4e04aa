"""What a deployment configures: Spark, the place of checkpoints, and the place of committed tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from dagster import ConfigurableResource, EnvVar
from pydantic import Field

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation, UploadInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_flinkpy.connectors import ParquetSink
    from dagster_flinkpy.runtime.spark import SparkSettings

__all__ = ["CheckpointStorageResource", "SparkResource", "TwoPhaseCommitSinkResource"]


class SparkResource(ConfigurableResource[Any]):
    """The Spark that runs a job's micro-batches."""

    mode: Literal["local", "remote", "classic"] = Field(
        default="local",
        description="'local': a Spark Connect server on this machine, started when needed, shared by runs, gone with "
        "the Dagster process. 'remote': the Spark Connect server at `remote`. 'classic': a driver in each run.",
    )
    master: str = Field(default="local[*]", description="Spark master of modes 'local' and 'classic'.")
    remote: str | None = Field(default=None, description="URL of mode 'remote', such as 'sc://host:15002'.")
    conf: dict[str, str] = Field(default_factory=dict, description="Further Spark configuration.")

    def settings(self) -> SparkSettings:
        """As the runtime takes it.

        Raises:
            ConfigurationError: The fields do not fit each other.
        """
        from dagster_flinkpy.runtime.spark import SparkSettings

        remote = None if self.remote is None else _resolved(self.remote, "remote")
        return SparkSettings(self.mode, _resolved(self.master, "master"), remote, dict(self.conf))

    def get_session(self) -> SparkSession:
        """A new session, for Spark work of your own; the caller stops it.

        Raises:
            SparkUnavailableError: It cannot be reached or started.
        """
        from dagster_flinkpy.runtime.spark import get_session

        return get_session(self.settings())


class _StorageResource(ConfigurableResource[Any]):
    url: str = Field(description="'s3://bucket/prefix' or a local directory.")
    endpoint_url: str | None = Field(default=None, description="S3 server other than Amazon's, as 'http://host:9000'.")
    region: str | None = Field(default=None, description="S3 region. Default: that of boto3's usual chain.")
    access_key_id: str | None = Field(default=None, description="Default: credentials of boto3's usual chain.")
    secret_access_key: str | None = Field(default=None, description="Given with access_key_id, or not at all.")

    def location(self) -> StorageLocation:
        """As the library takes it. Usable while the code location loads, too: EnvVars are read here.

        Raises:
            ConfigurationError: The URL or the credentials are not valid, or an environment variable is not set.
        """

        def optional(name: str) -> str | None:
            value = getattr(self, name)
            return None if value is None else _resolved(value, name)

        return StorageLocation(
            _resolved(self.url, "url"),
            optional("endpoint_url"),
            optional("region"),
            optional("access_key_id"),
            optional("secret_access_key"),
        )


class CheckpointStorageResource(_StorageResource):
    """Where checkpoints are kept; the state of a job lies under ``{url}/{job id}/``."""

    num_retained: int = Field(default=1, ge=1, description="How many completed checkpoints of a job are kept.")


class TwoPhaseCommitSinkResource(_StorageResource):
    """A place for tables whose rows appear only when their checkpoint is complete; each table is a folder of it."""

    def sink(self, table: str) -> ParquetSink:
        """A two-phase-commit sink into a table.

        Raises:
            PathEscapesPrefixError: The name of the table is no plain relative path.
        """
        from dagster_flinkpy.connectors import ParquetSink

        return ParquetSink(self.table(table))

    def table(self, table: str) -> StorageLocation:
        """Where a table is, for reading it."""
        return self.location().child(table)

    def lingering(self, job_id: str) -> list[UploadInfo]:
        """Transactions of a job that are staged and not committed.

        While no run is active these are what the last run left behind; the next one commits those of a completed
        checkpoint and aborts the others.

        Raises:
            StorageError: They cannot be listed.
        """
        return [upload for upload in self.location().open().list_uploads() if _job_of(upload.key) == job_id]


def _job_of(key: str) -> str:
    """The job that writes a file, by the naming rule of `ParquetSink`."""
    return unquote(key.rpartition("/")[2].partition(".")[0])


def _resolved(value: str, field: str) -> str:
    if not isinstance(value, EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise ConfigurationError(f"{field} is taken from environment variable {value.env_var_name}, which is not set")
    return found
