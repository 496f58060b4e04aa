"""The configured resources of the reference deployment, from environment variables.

- ``FLINKPY_HOME``: local folder of the input, and by default of everything else. Default: ``.demo`` in the checkout.
- ``FLINKPY_STORAGE``: location of the folders ``checkpoints`` and ``tables``, such as ``s3://bucket/flights``. Default:
  the home.
- ``FLINKPY_S3_ENDPOINT_URL``: an S3 server other than Amazon's.
- ``FLINKPY_SPARK_REMOTE``: a Spark Connect server, ``sc://host:15002``. Default: a local one, started when needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from dagster_flinkpy.orchestration import CheckpointStorageResource, DeltaSinkResource, FileSinkResource, SparkResource

__all__ = ["CHECKPOINTS", "DELTA_TABLES", "HOME", "SPARK", "TABLES", "resources"]

HOME = Path(os.environ.get("FLINKPY_HOME") or Path(__file__).parents[1] / ".demo").absolute()

_STORAGE = os.environ.get("FLINKPY_STORAGE", str(HOME)).rstrip("/")
_ENDPOINT_URL = os.environ.get("FLINKPY_S3_ENDPOINT_URL")
_SPARK_REMOTE = os.environ.get("FLINKPY_SPARK_REMOTE")

SPARK = SparkResource(mode="remote", remote=_SPARK_REMOTE) if _SPARK_REMOTE else SparkResource()
CHECKPOINTS = CheckpointStorageResource(url=f"{_STORAGE}/checkpoints", endpoint_url=_ENDPOINT_URL)
TABLES = FileSinkResource(url=f"{_STORAGE}/tables", endpoint_url=_ENDPOINT_URL)
DELTA_TABLES = DeltaSinkResource(url=f"{_STORAGE}/tables", endpoint_url=_ENDPOINT_URL)

resources = {"spark": SPARK, "checkpoint_storage": CHECKPOINTS, "tables": TABLES, "delta_tables": DELTA_TABLES}
