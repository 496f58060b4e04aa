from __future__ import annotations

from dataclasses import replace

from dagster_flinkpy.checkpoint.kept_parallelism import PARALLELISM, settle_parallelism
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from tests.checkpoint.samples import metadata, operator, source


def program(parallelism: int, own: int | None = None) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = env.from_collection([1], Types.LONG()).map(lambda x: x, Types.LONG()).uid("flights")
    if own is not None:
        numbers.set_parallelism(own)
    numbers.map(lambda x: x, Types.LONG()).uid("count")
    return env.get_job_graph()


def checkpoint(kept: int | None = None, parallelism: int = 2) -> CheckpointMetadata:
    taken = metadata(7, source(parallelism=parallelism), operator(parallelism=parallelism))
    return taken if kept is None else replace(taken, properties={PARALLELISM: kept})


def of(graph: JobGraph) -> tuple[int, ...]:
    return tuple(v.parallelism for v in graph.vertices if v.uid_set)


def test_without_a_checkpoint_the_program_decides() -> None:
    settled = settle_parallelism(program(4), None)
    assert (of(settled.graph), settled.kept, settled.told) == ((4, 4), None, ())


def test_the_same_as_before_is_not_worth_a_word() -> None:
    for settled in (settle_parallelism(program(2), checkpoint()), settle_parallelism(program(2), checkpoint(kept=2))):
        assert (of(settled.graph), settled.told) == ((2, 2), ())


def test_the_program_decides_where_nobody_has_rescaled_and_the_run_says_so() -> None:
    settled = settle_parallelism(program(4), checkpoint())
    assert (of(settled.graph), settled.kept) == ((4, 4), None)
    assert settled.told == (
        "parallelism set by the program, which differs from that of checkpoint 7: 'flights' (2 -> 4), 'count' (2 -> 4)",
    )


def test_a_rescale_takes_precedence_over_the_program() -> None:
    settled = settle_parallelism(program(4), checkpoint(kept=2))
    assert (of(settled.graph), settled.kept) == ((2, 2), 2)
    assert settled.told == (
        "parallelism 2, set by the last rescale, takes precedence over the program's 4; rescale the job to change it",
    )


def test_what_a_run_asks_for_takes_precedence_over_both() -> None:
    settled = settle_parallelism(program(4), checkpoint(kept=2), asked=3)
    assert (of(settled.graph), settled.kept) == ((3, 3), 3)
    assert [line.partition(",")[0] for line in settled.told] == ["parallelism 3"]
    assert "takes precedence over the program's 4" in settled.told[0]


def test_operators_with_a_parallelism_of_their_own_keep_it_and_are_named() -> None:
    settled = settle_parallelism(program(4, own=1), checkpoint(), asked=3)
    assert (of(settled.graph), settled.kept) == ((1, 3), 3)
    assert settled.told[-1] == "operators that set their own parallelism keep it: 'flights' (1)"


def test_a_job_that_starts_empty_goes_back_to_the_program() -> None:
    assert settle_parallelism(program(4), None).kept is None


def test_a_program_of_another_shape_is_compared_by_uid() -> None:
    other = replace(checkpoint(), operators=(operator("gone", parallelism=5),))
    assert settle_parallelism(program(2), other).told == ()
