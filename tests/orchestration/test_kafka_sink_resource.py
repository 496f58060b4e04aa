"""Transactions of assets into Kafka: a run writes once, and another run adds."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger
from dagster_flinkpy.connectors.kafka import committer as kafka_committer
from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import KafkaSinkResource
from tests.connectors.kafka.fake_kafka import TOPIC, FakeCluster, FakeProducer

DAYS = dg.StaticPartitionsDefinition(["x", "y"])


class Deployment:
    """Runs assets that write to a topic."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster = cluster
        self.topics = KafkaSinkResource(url=str(folder), bootstrap_servers="broker:9092")
        self.instance = dg.DagsterInstance.ephemeral()

    def run(self, asset: Any, **options: Any) -> bool:
        resources = {"topics": self.topics}
        result = dg.materialize([asset], instance=self.instance, resources=resources, raise_on_error=False, **options)
        return result.success

    def run_again(self, asset: Any) -> bool:
        """Repeats the newest run, as the button on its page does."""
        (record,) = self.instance.get_run_records(limit=1)
        before = record.dagster_run
        defs = dg.Definitions([asset], resources={"topics": self.topics}, executor=dg.in_process_executor)
        job = defs.resolve_implicit_global_asset_job_def()
        root = before.root_run_id or before.run_id
        tags = {"dagster/parent_run_id": before.run_id, "dagster/root_run_id": root}
        run = self.instance.create_run_for_job(job, parent_run_id=before.run_id, root_run_id=root, tags=tags)
        events = [*execute_run_iterator(InMemoryJob(job), run, self.instance)]
        return events[-1].is_job_success

    def numbers(self) -> list[int]:
        return sorted(json.loads(value or b"")["n"] for _, value in self.cluster.records)

    def staged(self) -> list[str]:
        return [each.key for each in self.topics.location().open().list() if not each.key.startswith(".")]


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployment:
    cluster = FakeCluster()
    monkeypatch.setattr(kafka_committer, "new_client", cluster.client)
    return Deployment(cluster, tmp_path)


def writing(after: Callable[[int], None] = lambda retry: None, retries: int = 1, **options: Any) -> Any:
    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=retries), **options)
    def numbers(context: dg.AssetExecutionContext, topics: KafkaSinkResource) -> None:
        with topics.transaction(context, TOPIC, key_field="s") as transaction:
            transaction.write(pa.table({"n": [1, 2], "s": ["a", None]}))
        after(context.retry_number)

    return numbers


def test_an_asset_writes_when_it_is_done(deployment: Deployment) -> None:
    assert deployment.run(writing())
    assert deployment.cluster.records == [(b"a", b'{"n": 1, "s": "a"}'), (None, b'{"n": 2, "s": null}')]
    assert deployment.staged() == []


def test_an_asset_that_a_test_calls_directly_writes_each_time(deployment: Deployment) -> None:
    @dg.asset
    def numbers(context: dg.AssetExecutionContext, topics: KafkaSinkResource) -> None:
        with topics.transaction(context, TOPIC) as transaction:
            transaction.write(pa.table({"n": [1, 2]}))

    for _ in range(2):
        numbers(dg.build_asset_context(), deployment.topics)
    assert deployment.numbers() == [1, 1, 2, 2]


def test_a_run_that_is_retried_after_it_has_written_adds_nothing(deployment: Deployment) -> None:
    def fail_once(retry: int) -> None:
        if retry == 0:
            raise ConnectionError

    assert deployment.run(writing(fail_once))
    assert (deployment.numbers(), deployment.staged()) == ([1, 2], [])


def test_a_run_that_repeats_another_adds_if_that_one_has_succeeded(deployment: Deployment) -> None:
    fails = True

    def fail(retry: int) -> None:
        if fails:
            raise ConnectionError

    asset = writing(fail, retries=0)
    assert not deployment.run(asset)
    assert not deployment.run_again(asset)
    fails = False
    assert deployment.run_again(asset)
    assert deployment.numbers() == [1, 2], "all of these are tries of one run"
    assert deployment.run_again(asset)
    assert deployment.numbers() == [1, 1, 2, 2]


def test_another_run_adds(deployment: Deployment) -> None:
    asset = writing(partitions_def=DAYS)
    for day in ("x", "y", "x"):
        assert deployment.run(asset, partition_key=day)
    assert deployment.numbers() == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("when", "step", "is_retry"),
    [
        ("before", "begin_transaction", True),
        ("before", "commit_transaction", True),
        ("after", "commit_transaction", True),
        ("after", "commit_transaction", False),
    ],
)
def test_a_run_that_dies_while_it_writes_writes_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, step: str, when: str, is_retry: bool
) -> None:
    real, dies = getattr(FakeProducer, step), [True]

    class Crash(BaseException):
        pass

    def crashing(producer: FakeProducer, *args: Any) -> None:
        if when == "after":
            real(producer, *args)
        if dies:
            dies.clear()
            raise Crash
        if when == "before":
            real(producer, *args)

    monkeypatch.setattr(FakeProducer, step, crashing)
    asset = writing(retries=0)
    assert not deployment.run(asset)
    assert deployment.run_again(asset) if is_retry else deployment.run(asset)
    expected = [1, 2] if is_retry else [1, 1, 2, 2]  # another run adds its own
    assert (deployment.numbers(), deployment.staged(), deployment.cluster.open) == (expected, [], {})
    (ledger,) = OutputLedger.all(deployment.topics.location().open())
    assert ledger.read().transactions == ()


def test_a_transaction_that_fails_writes_nothing(deployment: Deployment) -> None:
    @dg.asset
    def fails(context: dg.AssetExecutionContext, topics: KafkaSinkResource) -> None:
        with topics.transaction(context, TOPIC) as transaction:
            transaction.write(pa.table({"n": [1]}))
            raise ValueError

    assert not deployment.run(fails)
    assert (deployment.cluster.records, deployment.staged()) == ([], [])


def test_a_second_transaction_of_a_run_is_refused(deployment: Deployment) -> None:
    @dg.asset
    def twice(context: dg.AssetExecutionContext, topics: KafkaSinkResource) -> None:
        for n in (1, 2):
            with topics.transaction(context, TOPIC) as transaction:
                transaction.write(pa.table({"n": [n]}))

    assert not deployment.run(twice)
    assert deployment.numbers() == [1]


@pytest.mark.parametrize("order", ["one after the other", "side by side"])
def test_two_transactions_of_a_run_at_once_write_one_of_them_and_fail(deployment: Deployment, order: str) -> None:
    """Both have begun before one ends. What the other wrote must not be dropped in silence."""
    failures: list[str | None] = []

    @dg.asset
    def both(context: dg.AssetExecutionContext, topics: KafkaSinkResource) -> None:
        with ExitStack() as stack:
            first = stack.enter_context(topics.transaction(context, TOPIC))
            if order == "side by side":
                try:
                    with topics.transaction(context, TOPIC) as second:
                        second.write(pa.table({"n": [2]}))
                except dg.Failure as failure:
                    failures.append(failure.description)
            first.write(pa.table({"n": [1]}))
        try:
            with topics.transaction(context, TOPIC) as third:
                third.write(pa.table({"n": [3]}))
        except dg.Failure as failure:
            failures.append(failure.description)

    succeeded = deployment.run(both)
    assert succeeded == (order == "one after the other")
    assert deployment.numbers() == ([1] if succeeded else [2])
    assert all("in this run already" in str(said) for said in failures) and len(failures) == (1 if succeeded else 0)


def test_another_process_of_a_run_knows_what_the_first_one_has_written(deployment: Deployment) -> None:
    """The ledger knows it, not the process."""
    assert deployment.run(writing())
    (ledger,) = OutputLedger.all(deployment.topics.location().open())
    (run,) = deployment.instance.get_runs()
    assert ledger.read().writers == (f"{run.run_id}/0",)


def test_a_topic_that_does_not_exist_fails_the_step_and_leaves_nothing(deployment: Deployment) -> None:
    deployment.cluster.topics.clear()
    assert not deployment.run(writing())
    assert (deployment.cluster.records, deployment.staged()) == ([], [])


def test_sinks_of_programs(deployment: Deployment) -> None:
    text = KafkaRecordSerializationSchema(TOPIC, SimpleStringSchema())
    sink = deployment.topics.sink(TOPIC, record_serializer=text)
    sink.validate(Types.STRING())
    assert sink.uri() == "kafka://broker:9092/topic"
    with pytest.raises(ConfigurationError, match="topic must be 'other'"):
        deployment.topics.sink("other", record_serializer=text)
