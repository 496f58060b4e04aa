"""One store of each kind for the conformance suite."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from dagster_flinkpy.storage import ObjectStore, StorageLocation
from tests.conftest import fresh_bucket

CEPH = "FLINKPY_TEST_CEPH_URL"


@pytest.fixture(scope="session")
def ceph() -> StorageLocation:
    """Returns a new bucket on the Ceph RGW that ``.ci/ceph-rgw start`` printed."""
    if CEPH not in os.environ:
        pytest.skip(f'{CEPH} is not set: export {CEPH}="$(.ci/ceph-rgw start)"')
    return fresh_bucket(*os.environ[CEPH].split())


@pytest.fixture(params=["local", "ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StorageLocation:
    """Returns an empty location on each kind of store."""
    if request.param == "local":
        return StorageLocation(str(tmp_path / "store"))
    server: StorageLocation = request.getfixturevalue(request.param)
    return server.child(f"test {uuid.uuid4().hex}")


@pytest.fixture
def store(location: StorageLocation) -> ObjectStore:
    """Returns an empty store of each kind."""
    return location.open()
