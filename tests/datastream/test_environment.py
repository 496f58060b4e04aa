from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.common import Configuration, Duration, ExecutionConfig, Types, WatermarkStrategy
from dagster_flinkpy.datastream import CheckpointingMode, RuntimeExecutionMode, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.errors import ConfigurationError, JobGraphError


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def test_options_set_the_environment() -> None:
    options = {
        "parallelism.default": "3",
        "pipeline.max-parallelism": "64",
        "execution.runtime-mode": "batch",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": "/checkpoints",
        "pipeline.strict": "true",
        "taskmanager.memory.size": "1g",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))
    assert (env.get_parallelism(), env.get_max_parallelism(), env.get_checkpoint_interval()) == (3, 64, 10_000)
    assert env.get_checkpoint_config().storage_dir == "/checkpoints"
    assert env.get_config().is_strict()
    numbers = env.from_collection([1], Types.INT()).uid("ones").key_by(lambda v: v).reduce(lambda a, b: a).uid("first")
    numbers.print()
    assert env.get_job_graph().vertex("first").spec.final_only


def test_an_option_that_was_removed_says_what_to_do() -> None:
    options = Configuration.from_dict({"execution.checkpointing.barriers-per-job": "4"})
    with pytest.raises(ConfigurationError, match=r"barriers-per-job' was removed: leave it out"):
        StreamExecutionEnvironment.get_execution_environment(options)


def test_operators_have_the_parallelism_the_environment_had_when_they_were_declared(
    env: StreamExecutionEnvironment,
) -> None:
    assert (env.get_parallelism(), env.get_max_parallelism()) == (1, -1)
    env.set_parallelism(3)
    numbers = env.from_collection([1], Types.INT()).map(lambda v: v).uid("three")
    env.set_parallelism(2)
    numbers.map(lambda v: v).uid("two").map(lambda v: v).uid("own").set_parallelism(5)
    graph = env.get_job_graph()
    assert [graph.vertex(uid).parallelism for uid in ("three", "two", "own")] == [3, 2, 5]


def test_checkpoint_settings(env: StreamExecutionEnvironment) -> None:
    env.enable_checkpointing(500, CheckpointingMode.AT_LEAST_ONCE)
    config = env.get_checkpoint_config()
    config.set_checkpoint_timeout(1000).set_min_pause_between_checkpoints(20).set_max_concurrent_checkpoints(2)
    config.enable_unaligned_checkpoints().set_aligned_checkpoint_timeout(Duration.of_seconds(3))
    assert (config.get_checkpoint_interval(), env.get_checkpointing_mode()) == (500, CheckpointingMode.AT_LEAST_ONCE)
    assert (config.timeout, config.min_pause, config.max_concurrent) == (
        timedelta(seconds=1),
        timedelta(milliseconds=20),
        2,
    )
    assert config.is_unaligned_checkpoints_enabled() and config.get_aligned_checkpoint_timeout().to_millis() == 3000
    assert not config.set_fail_on_checkpointing_errors(False).is_fail_on_checkpointing_errors()
    with pytest.raises(ConfigurationError, match="at least 10 ms"):
        config.set_checkpoint_interval(5)


def test_in_batch_mode_there_are_no_watermarks_before_the_end(env: StreamExecutionEnvironment) -> None:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
    env.from_source(NumberSequenceSource(1, 3), bounded, "numbers").assign_timestamps_and_watermarks(bounded)
    streaming = [v.spec.watermark_strategy.max_out_of_orderness for v in env.get_job_graph().vertices]
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    batch = [v.spec.watermark_strategy.max_out_of_orderness for v in env.get_job_graph().vertices]
    assert streaming == [Duration.of_seconds(1)] * 2
    assert batch == [None, None]


def test_a_program_declared_later_holds_what_it_reads_of_one_that_ran(
    env: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Executor:
        def execute(self, graph, settings):
            return [v.uid for v in graph.vertices]

    monkeypatch.setattr("dagster_flinkpy.datastream.program.program.get_executor", Executor)
    numbers = env.from_collection([1, 2], Types.INT()).map(lambda v: v + 1).uid("added")
    numbers.print().uid("first")
    assert env.execute() == ["collection_source", "added", "first"]
    numbers.print().uid("second")
    assert env.execute() == ["collection_source", "added", "second"]


def test_a_sequence_of_numbers_is_read_by_all_subtasks() -> None:
    source = NumberSequenceSource(-2, 200_000)
    shares = source.create_enumerator(None).plan_epoch(3)
    read = [[v for split in share for column, _ in source.read(split) for v in column.to_pylist()] for share in shares]
    assert [v for share in read for v in share] == list(range(-2, 200_001))
    assert all(len(share) > 60_000 for share in read)
    with pytest.raises(ConfigurationError, match="start 2 is greater than end 1"):
        NumberSequenceSource(2, 1)


def test_text_files_are_read_by_lines(env: StreamExecutionEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny")
    stream = env.read_text_file(str(tmp_path / "a"))
    source = env.get_job_graph().vertices[0].spec.source
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    assert [line for column, _ in source.read(split) for line in column.to_pylist()] == ["x", "y"]
    assert stream.get_type() == Types.STRING()


def test_fields_of_tuples_are_projected(env: StreamExecutionEnvironment) -> None:
    pairs = env.from_collection([(1, "a")], Types.TUPLE([Types.INT(), Types.STRING()]))
    assert pairs.project(1).get_type() == Types.TUPLE([Types.STRING()])
    with pytest.raises(JobGraphError, match="has 2 fields"):
        pairs.project(2)
    with pytest.raises(JobGraphError, match=r"needs a stream of Types\.TUPLE"):
        env.from_collection([1], Types.INT()).project(0)


def test_streams_that_are_no_operator_refuse_settings(env: StreamExecutionEnvironment) -> None:
    numbers = env.from_collection([1], Types.INT())
    assert numbers.disable_chaining().start_new_chain().set_buffer_timeout(5).set_description("d").get_name()
    assert numbers.map(lambda v: v).force_non_parallel()._transformation.max_parallelism == 1
    with pytest.raises(JobGraphError, match="is not an operator"):
        numbers.key_by(lambda v: v).set_parallelism(2)


@pytest.mark.parametrize("method", ["shuffle", "rescale", "rebalance", "forward", "broadcast"])
def test_keyed_streams_cannot_be_partitioned_otherwise(env: StreamExecutionEnvironment, method: str) -> None:
    keyed = env.from_collection([1], Types.INT()).key_by(lambda v: v)
    with pytest.raises(JobGraphError, match=r"before key_by\(\)"):
        getattr(keyed, method)()
    with pytest.raises(JobGraphError, match=r"before key_by\(\)"):
        keyed.partition_custom(lambda key, n: 0, lambda v: v)


def test_execution_configs_with_the_same_settings_are_equal() -> None:
    some, other = ExecutionConfig(), ExecutionConfig()
    some.set_global_job_parameters({"a": 1, "b": 2})
    assert some != other
    other.set_global_job_parameters({"b": 2, "a": 1})
    assert some == other
    assert hash(some) == hash(other)
    assert some.set_strict(True) != other
