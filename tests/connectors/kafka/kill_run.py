"""A run into Kafka that may kill itself: ``python -m tests.connectors.kafka.kill_run BROKERS TOPIC FOLDER AT``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.connectors.kafka.committer import KafkaCommitter
from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import environment


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(brokers: str, topic: str, folder: str, at: str) -> None:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_value_serialization_schema(SimpleStringSchema())
    sink = KafkaSink.builder().set_bootstrap_servers(brokers).set_record_serializer(schema.build())
    env = environment()
    numbers = env.from_collection([str(n) for n in range(5)], Types.STRING()).uid("numbers")
    numbers.sink_to(sink.set_staging(f"{folder}/staging").build()).uid("sink")
    if at:
        KafkaCommitter.commit = _die  # type: ignore[method-assign]
    with HarnessAttempt(env.get_job_graph(), Path(folder) / "job") as attempt:
        if attempt.restored is not None:
            attempt.commit_restored()
        while not attempt.finished:
            attempt.run_epoch()


if __name__ == "__main__":
    main(*sys.argv[1:])
