"""The resources of a deployment: Spark, and storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from dagster import ConfigurableResource, EnvVar
from pydantic import ConfigDict, Field, field_validator

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import DEFAULT_NUM_RETAINED
from dagster_flinkpy.common import Configuration
from dagster_flinkpy.common.metric_options import MetricReporterOptions, is_reporter_option, metric_reporters_of
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation, warn_if_relative

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_flinkpy.spark.sessions import SparkMode, SparkSettings

__all__ = [
    "CheckpointStorageResource",
    "SparkResource",
    "StorageResource",
    "checkpoint_storage",
    "resolved",
    "resource_of",
    "storage_location",
]


_Resource = TypeVar("_Resource", bound=ConfigurableResource[Any])


class SparkResource(ConfigurableResource[Any]):
    """The Spark that runs the epochs of jobs."""

    model_config = ConfigDict(extra="forbid")  # a misspelt field is no setting without effect

    mode: str = Field(
        default="local",
        description="'local': a Spark Connect server on this machine. It is started when needed, shared by runs, and "
        "ends with the Dagster process. 'remote': the Spark Connect server at `remote`. 'classic': a Spark driver in "
        "each run.",
    )
    master: str = Field(default="local[*]", description="Spark master for the modes 'local' and 'classic'.")
    remote: str | None = Field(default=None, description="URL for the mode 'remote', such as 'sc://host:15002'.")
    conf: dict[str, str] = Field(default_factory=dict, description="Additional Spark configuration.")
    metric_reporters: dict[str, str] = Field(
        default_factory=dict,
        description="Options 'metrics.reporter.*' of the runs, such as {'metrics.reporter.prom.port': '9250-9260'}. "
        "Default: those of the program.",
    )

    def reporters(self) -> tuple[MetricReporterOptions, ...]:
        """Returns who gets the metrics of runs; nobody if the program says who.

        Raises:
            ConfigurationError: An option is not about metric reporters, has a wrong value, or is missing.
        """
        for option in self.metric_reporters:
            if not is_reporter_option(option):
                raise ConfigurationError(f"metric_reporters of SparkResource has {option!r}, not 'metrics.reporter.*'")
        return metric_reporters_of(Configuration.from_dict(dict(self.metric_reporters)))

    def settings(self) -> SparkSettings:
        """Returns the settings in the form that the runtime takes.

        Raises:
            ConfigurationError: The fields contradict each other.
        """
        from dagster_flinkpy.spark.sessions import SparkSettings

        remote = None if self.remote is None else resolved(self.remote, "remote")
        mode = cast("SparkMode", resolved(self.mode, "mode"))  # SparkSettings checks it
        conf = {name: resolved(value, name) for name, value in self.conf.items()}
        return SparkSettings(mode, resolved(self.master, "master"), remote, conf)

    def get_session(self) -> SparkSession:
        """Opens a new session for Spark work of your own; the caller stops it.

        Raises:
            SparkUnavailableError: Spark cannot be reached or started.
        """
        from dagster_flinkpy.spark.sessions import get_session

        return get_session(self.settings(), own=True)


class StorageResource(ConfigurableResource[Any]):
    """A folder on S3, or a local one."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="'s3://bucket/prefix', or the absolute path of a local directory.")
    endpoint_url: str | None = Field(
        default=None, description="S3 server other than Amazon's, such as 'http://host:9000'."
    )
    region: str | None = Field(default=None, description="S3 region. Default: found by boto3.")
    access_key_id: str | None = Field(default=None, description="S3 access key. Default: credentials found by boto3.")
    secret_access_key: str | None = Field(default=None, description="S3 secret key. Required with access_key_id.")
    path_on_workers: str | None = Field(
        default=None,
        description="Absolute path where Spark's workers have the local directory mounted. Default: the same path.",
    )
    kms_key_id: str | None = Field(
        default=None, description="KMS key that objects on S3 are encrypted with. Default: as the bucket has it."
    )
    addressing_style: str | None = Field(
        default=None, description="'path' or 'virtual'. Default: path with endpoint_url, else found by boto3."
    )

    def location(self) -> StorageLocation:
        """Returns the location. It also reads EnvVars, so it works while the code location loads.

        Raises:
            ConfigurationError: The URL or the credentials are not valid, or an environment variable is not set.
        """
        return storage_location(self, resolved(self.url, "url"))


class CheckpointStorageResource(StorageResource):
    """Where checkpoints are kept. The state of a job is under ``{url}/{job id}/``."""

    num_retained: int = Field(
        default=DEFAULT_NUM_RETAINED,
        description="Number of completed checkpoints to keep for each job. The reset job can go back to any of them.",
    )

    @field_validator("num_retained", mode="before")
    @classmethod
    def _is_positive(cls, value: Any) -> Any:
        # With ge=1, pydantic would refuse EnvVar.int(), which is 0 until Dagster reads it for a run.
        if not hasattr(value, "env_var_name") and isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1")
        return value


def resource_of(resources: object, key: str, kind: type[_Resource]) -> _Resource:
    """Returns a resource of a run.

    Raises:
        ConfigurationError: It is of another kind, as if the project has given its name to something else.
    """
    found = getattr(resources, key)
    if not isinstance(found, kind):
        other = "spark_resource_key" if kind is SparkResource else "checkpoint_storage_resource_key"
        raise ConfigurationError(
            f"resource {key!r} must be a {kind.__name__}, but is a {type(found).__name__}. If the project has that one "
            f"under this key, give the {kind.__name__} another key, and pass it as {other}=... to flink_assets and "
            "build_flink_jobs"
        )
    return found


def checkpoint_storage(folder: StorageLocation, num_retained: int) -> CheckpointStorageResource:
    """Returns the resource of a folder that contains jobs.

    Args:
        folder: The folder.
        num_retained: Number of completed checkpoints to keep for each job.
    """
    given = {name: getattr(folder, name) for name in StorageResource.model_fields}
    if folder.mounted != folder.url:  # what is mounted is another directory
        given["path_on_workers"] = None
    return CheckpointStorageResource(**given, num_retained=num_retained)


def storage_location(settings: Any, url: str) -> StorageLocation:
    """Returns a location with the S3 settings of a resource or IO manager.

    Raises:
        ConfigurationError: The URL or the credentials are not valid, or an environment variable is not set.
    """

    def optional(name: str) -> str | None:
        value = getattr(settings, name, None)
        return None if value is None else resolved(value, name)

    if optional("endpoint_url") and "://" not in url and not url.startswith(("/", "~")):
        raise ConfigurationError(f"url {url!r} is a local path, but endpoint_url is that of S3: write 's3://{url}'")
    warn_if_relative(url, "the url of a storage")
    return StorageLocation(
        url,
        optional("endpoint_url"),
        optional("region"),
        optional("access_key_id"),
        optional("secret_access_key"),
        optional("path_on_workers"),
        optional("kms_key_id"),
        optional("addressing_style"),
    )


def resolved(value: str, field: str) -> str:
    """Returns the value of a field, which may come from the environment.

    Raises:
        ConfigurationError: The environment variable is not set.
    """
    if not isinstance(value, EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise ConfigurationError(f"{field} comes from environment variable {value.env_var_name}, which is not set")
    return found
