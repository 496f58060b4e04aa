"""Where a store is and how to reach it, as plain data that is sent to Spark workers."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dagster_flinkpy.errors import ConfigurationError, RelativePathWarning
from dagster_flinkpy.storage.driver_store import DriverObjectStore, files_of_task
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative

__all__ = ["StorageLocation", "on_worker", "warn_if_relative"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)(.*)", re.DOTALL)
_MEANT = {"s3": "s3://", "s3a": "s3://", "s3n": "s3://", "file": "file:///"}
"""What a scheme should look like; Hadoop calls S3 by other names."""
_warned_of: set[str] = set()
"""The relative paths that this process has warned of."""


@dataclass(frozen=True)
class StorageLocation:
    """A prefix on S3 or a local directory. Equal locations are the same place. Pickled, it is a few strings."""

    url: str
    """``s3://bucket/prefix``, ``file:///dir`` or a plain path; kept as ``s3://...`` or an absolute ``file:///...``."""
    endpoint_url: str | None = None
    """S3 only: the address of a server other than Amazon's, such as ``http://127.0.0.1:9000``. Default: boto3's."""
    region: str | None = None
    """S3 only. Default: boto3's (``us-east-1`` if it finds none)."""
    access_key_id: str | None = None
    """S3 only. Default: boto3's usual chain (environment, profile, instance role)."""
    secret_access_key: str | None = field(default=None, repr=False)
    """S3 only. Required with ``access_key_id``, and not allowed without it."""
    path_on_workers: str | None = field(default=None, compare=False)
    """Local directories only: the absolute path where Spark's workers have the directory mounted. Default: the same."""
    kms_key_id: str | None = None
    """S3 only: the KMS key that objects are encrypted with, as an id, alias or ARN. Default: as the bucket has it."""
    addressing_style: str | None = None
    """S3 only: ``path`` or ``virtual`` (``http://bucket.host``). Default: path with ``endpoint_url``, else boto3's."""
    mounted: str | None = field(default=None, compare=False, repr=False)
    """The URL that ``path_on_workers`` stands for, also in locations that are made of this one. Default: ``url``."""

    def __post_init__(self) -> None:
        """Normalises ``url``.

        Raises:
            ConfigurationError: The URL has another scheme, no bucket or characters that no name can have, the endpoint
                is not a URL, one half of the credentials is missing, the addressing style is not one of these two, a
                KMS key or a style is given for a local directory, or the path on workers is not absolute or not that of
                a local directory.
            PathEscapesPrefixError: The prefix on S3 is not a plain path.
        """
        if not isinstance(self.url, str) or not isinstance(self.endpoint_url, str | None):
            raise ConfigurationError(f"a URL of the storage is not text: {self.url!r}, endpoint {self.endpoint_url!r}")
        if not self.url.strip():
            raise ConfigurationError("the storage URL is empty; it must be s3://bucket/prefix, file:///dir or a path")
        _check_characters(self.url, self.url)
        _check_scheme(self.url)
        scheme, separator, rest = self.url.partition("://")
        if scheme == "s3" and separator:
            bucket, _, prefix = rest.partition("/")
            prefix = prefix.rstrip("/")
            if not bucket:
                raise ConfigurationError(f"storage URL {self.url!r} names no bucket: s3://bucket/prefix")
            url = f"s3://{bucket}/{check_relative(prefix)}" if prefix else f"s3://{bucket}"
        else:
            url = (Path(_path_of(self.url)) if separator else Path(self.url).expanduser()).absolute().as_uri()
        object.__setattr__(self, "url", url)
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigurationError("give both access_key_id and secret_access_key, or neither")
        if self.addressing_style not in (None, "path", "virtual"):
            raise ConfigurationError(f"addressing_style must be 'path' or 'virtual', not {self.addressing_style!r}")
        if self.url.startswith("file:") and (self.kms_key_id is not None or self.addressing_style is not None):
            raise ConfigurationError(f"kms_key_id and addressing_style are for S3, not for {self.url}")
        if self.path_on_workers is not None and self.mounted is None:
            object.__setattr__(self, "mounted", url)
            _check_characters(self.path_on_workers, self.path_on_workers)
            if not self.url.startswith("file:"):
                raise ConfigurationError(
                    f"path_on_workers is for a directory that driver and workers have mounted, not for {self.url}: an "
                    "upload that one of them has begun on S3 could not be completed through the other's folder"
                )
            if not Path(self.path_on_workers).is_absolute():
                raise ConfigurationError(f"path_on_workers must be an absolute path, not {self.path_on_workers!r}")

    @property
    def local_path(self) -> Path | None:
        """The path of a local directory, as this process sees it; None on S3."""
        if not self.url.startswith("file:"):
            return None
        path = Path(_path_of(self.url))
        if self.path_on_workers is None or self.mounted is None or not on_worker():
            return path
        root, there = Path(_path_of(self.mounted)), Path(self.path_on_workers)
        if path.is_relative_to(root):
            return there / path.relative_to(root)
        above = len(root.parts) - len(path.parts)  # a folder that contains the directory, or one elsewhere
        return there.parents[above - 1] if root.is_relative_to(path) and above <= len(there.parents) else path

    def open(self) -> ObjectStore:
        """Returns the store. This is cheap: all stores of a process share one S3 client. A fork creates its own.

        In a task of a worker without a way to the store, it is a :class:`DriverObjectStore`.
        """
        if (files := files_of_task()) is not None:
            return DriverObjectStore(self, files)
        if (path := self.local_path) is not None:
            from dagster_flinkpy.storage.local import LocalObjectStore

            return LocalObjectStore(path)
        from dagster_flinkpy.storage.s3 import S3ObjectStore, s3_client

        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return S3ObjectStore(
            s3_client(
                self.endpoint_url, self.region, self.access_key_id, self.secret_access_key, self.addressing_style
            ),
            bucket,
            prefix,
            self.kms_key_id,
        )

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StorageLocation:
        """The location that contains this one."""
        return replace(self, url=self.url.rpartition("/")[0])

    def child(self, prefix: str) -> StorageLocation:
        """Returns the location ``prefix`` below this one.

        Raises:
            PathEscapesPrefixError: ``prefix`` is not a plain relative path.
        """
        prefix = check_relative(prefix.rstrip("/"))
        if self.url.startswith("file:"):
            return replace(self, url=(Path(_path_of(self.url)) / prefix).as_uri())
        return replace(self, url=f"{self.url}/{prefix}")


def on_worker() -> bool:
    """Returns whether this process is a worker of Spark. PySpark is not imported for that."""
    module = sys.modules.get("pyspark.taskcontext")
    return module is not None and module.TaskContext.get() is not None


def warn_if_relative(url: str, what: str) -> None:
    """Issues a `RelativePathWarning`, once in a process, if a URL that several processes use is a relative path.

    Args:
        url: A URL or a path.
        what: What it is, for the message.
    """
    path = Path(url).expanduser()
    if url.strip() and not _SCHEME.match(url) and not path.is_absolute() and url not in _warned_of:
        _warned_of.add(url)
        warnings.warn(
            f"{what} is the relative path {url!r}. Each process looks for it in its own working directory, which is "
            f"{str(path.absolute())!r} here; write an absolute path",
            RelativePathWarning,
            stacklevel=2,
        )


def _check_scheme(url: str) -> None:
    """Raises a ConfigurationError if a URL is none of S3 or a local directory, or if it is misspelled."""
    found = _SCHEME.match(url)
    scheme, slashes, rest = found.groups() if found else ("", "", "")
    if not slashes and scheme.lower() not in _MEANT:
        return  # a path, which may have a colon
    if scheme in ("s3", "file") and slashes.startswith("//"):
        return
    meant = _MEANT.get(scheme.lower())
    hint = f"did you mean {meant + rest!r}?" if meant else f"there is no storage for {scheme!r}"
    raise ConfigurationError(f"storage URL {url!r} must be s3://bucket/prefix, file:///dir or a path; {hint}")


def check_endpoint(url: str) -> None:
    """Checks that the address of an S3 server is a URL with a host.

    Args:
        url: The address, such as ``http://127.0.0.1:9000``.

    Raises:
        ConfigurationError: The address is not such a URL.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an impossible port, or half of an IPv6 address
        valid = False
    if not valid:
        raise ConfigurationError(f"endpoint URL {url!r} must be http://host:port or https://host")


def _check_characters(text: str, url: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"storage URL {url!r} is not Unicode text: {error.reason}") from None
    if bad := next((c for c in text if c < " " or c == "\x7f"), None):
        raise ConfigurationError(f"storage URL {url!r} has the control character {bad!r}, which no name may have")


def _path_of(file_url: str) -> str:
    try:
        parts = urlsplit(file_url)
    except ValueError as error:
        raise ConfigurationError(f"{file_url!r} is not a URL ({error}); a local directory is file:///dir") from error
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigurationError(f"{file_url!r} names a host or a relative path; a local directory is file:///dir")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file_url!r} is not the URL of a path in UTF-8: {error.reason}") from None
    _check_characters(path, file_url)
    return path
