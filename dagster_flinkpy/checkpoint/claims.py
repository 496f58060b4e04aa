"""What others than a job's own checkpoints name of its files: native savepoints, and jobs that were forked from it.

Nobody counts references. Whoever deletes files of a job lists first who names them, after its ``HEAD`` no longer does.
Whoever names them writes that down first, and reads ``HEAD`` afterwards. So one of the two sees the other.

A claim is the object ``claims/{fork}/{nonce}`` below the prefix of the job whose files it names. It is written once,
and later only replaced by one that names fewer files, so whoever remembers what it has said keeps too much at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.checkpoint.traces import SAVEPOINT_PREFIX
from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.json_records import Id, JsonRecord, Millis
from dagster_flinkpy.storage.object_store import ObjectStore, put_if

__all__ = [
    "CLAIMS_FOLDER",
    "NATIVE_SUFFIX",
    "Claim",
    "StoredClaim",
    "claims_of",
    "named_by_others",
    "read_claim",
    "shrink_claim",
    "write_claim",
]

CLAIMS_FOLDER = "claims/"
NATIVE_SUFFIX = "-native/"
"""Suffix of the folder names of native savepoints, which refer to the job's own files."""


@dataclass(frozen=True)
class Claim(JsonRecord):
    """The files of a job that a fork of it names."""

    fork: str
    """The id of the forked job."""
    checkpoint_id: Id
    """The checkpoint or savepoint that it was forked from."""
    created_at: Millis
    """When, in milliseconds since 1970."""
    files: tuple[str, ...]
    """The paths of the files, relative to the prefix of the job that has written them."""


@dataclass(frozen=True)
class StoredClaim:
    """Where a claim is."""

    key: str
    written: datetime
    """When it was written or became smaller."""

    @property
    def fork(self) -> str:
        """The id of the forked job."""
        return self.key.split("/")[1]


def write_claim(owner: ObjectStore, nonce: str, claim: Claim) -> str:
    """Claims files of a job, and returns the key of the claim.

    Args:
        owner: The store, rooted at the prefix of the job that has written the files.
        nonce: Distinguishes the claim from all others of the fork.
        claim: What is claimed.
    """
    key = f"{CLAIMS_FOLDER}{claim.fork}/{nonce}"
    put_if(owner, key, claim.to_bytes(), None)
    return key


def claims_of(owner: ObjectStore, fork: str = "") -> list[StoredClaim]:
    """Lists the claims on files of a job.

    Args:
        owner: The store, rooted at the prefix of the job that has written the files.
        fork: Whose claims. Default: all.
    """
    prefix = f"{CLAIMS_FOLDER}{fork}/" if fork else CLAIMS_FOLDER
    return [StoredClaim(info.key, info.last_modified) for info in owner.list(prefix)]


def read_claim(owner: ObjectStore, key: str) -> tuple[Claim, str] | None:
    """Reads a claim.

    Returns:
        The claim and its ETag, or None if it was given up.

    Raises:
        CorruptMetadataError: It is damaged, so it is unknown which files it names.
    """
    try:
        data, etag = owner.get(key)
    except ObjectNotFoundError:
        return None
    try:
        return Claim.from_text(data), etag
    except ValueError as error:
        raise CorruptMetadataError(
            f"{owner.url}/{key} does not say which files a fork needs: {error}. No state file is deleted until it can "
            "be read, or until it is deleted because there is no such job any more."
        ) from error


def shrink_claim(owner: ObjectStore, key: str, needed: Collection[str]) -> None:
    """Gives up the files of a claim that are not needed, and the claim with the last of them.

    Args:
        owner: The store, rooted at the prefix of the job that has written the files.
        key: The key of the claim.
        needed: The files that the fork needs, under the names that the claim has for them.
    """
    found = read_claim(owner, key)
    if found is None:
        return
    claim, etag = found
    files = tuple(path for path in claim.files if path in needed)
    if not files:
        owner.delete(key)
    elif len(files) < len(claim.files):
        with suppress(PreconditionFailedError):  # another one has just done it
            put_if(owner, key, replace(claim, files=files).to_bytes(), etag)


def named_by_others(job: ObjectStore, known: Mapping[str, set[str]] | None = None) -> dict[str, set[str]]:
    """Returns the files that native savepoints and forks of a job name, by the key of who names them.

    Args:
        job: The store, rooted at the job's prefix.
        known: The result of an earlier call; what it has is not read again.

    Raises:
        CorruptMetadataError: One of them cannot be read, so it is unknown which files it needs.
    """
    return dict(_named(job, known or {}))


def _named(job: ObjectStore, known: Mapping[str, set[str]]) -> Iterator[tuple[str, set[str]]]:
    for claim in claims_of(job):
        if claim.key in known:
            yield claim.key, known[claim.key]
        elif (found := read_claim(job, claim.key)) is not None:
            yield claim.key, set(found[0].files)
    for folder in job.list_folders(SAVEPOINT_PREFIX):
        path = folder + METADATA_NAME
        if not folder.endswith(NATIVE_SUFFIX):
            continue
        if path in known:
            yield path, known[path]
            continue
        try:
            yield path, CheckpointMetadata.from_bytes(fetch_metadata(job, path), f"{job.url}/{path}").files()
        except ObjectNotFoundError:
            continue  # it was disposed of just now
        except CorruptMetadataError as error:
            raise CorruptMetadataError(
                f"{error} It is a native savepoint, and no state file is deleted until it can be read or its folder is "
                "deleted."
            ) from error
