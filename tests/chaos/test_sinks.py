"""A part of the kill matrix of the sinks; ``make chaos`` runs all of it (`tests.chaos.sinks`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dagster_flinkpy.storage import StorageLocation
from tests.chaos.sink_job import BROKEN
from tests.chaos.sink_targets import TARGETS, Place, new_place
from tests.chaos.sinks import Case, random_cases, run_case


@pytest.fixture
def make(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """Returns what makes a place for a case of a sink."""
    server = TARGETS[name].server
    if server == "s3":
        return partial(new_place, request.getfixturevalue("s3_location"))
    return partial(new_place, StorageLocation(str(tmp_path)), request.getfixturevalue(server) if server else "")


@pytest.mark.smoke
@pytest.mark.parametrize("name", TARGETS)
def test_a_job_is_killed_and_the_next_attempt_sleeps_within_the_same_commit(
    name: str, make: Callable[[], Place]
) -> None:
    *_, last = TARGETS[name].amid
    outcome = run_case(Case("before commit", recovery=last, sleeps=True), name, make)
    assert outcome.exact, outcome


@pytest.mark.parametrize("name", ["files"])
def test_a_job_is_killed_at_a_random_time(name: str, make: Callable[[], Place]) -> None:
    outcome = run_case(next(random_cases(1, seed=random.randrange(1 << 32))), name, make, seconds=0.2)
    assert outcome.exact, outcome


@pytest.mark.parametrize("name", ["iceberg"])
@pytest.mark.parametrize(
    ("step", "broken"), list(zip(["before commit", "after the snapshot"], BROKEN, strict=True)), ids=["lost", "doubled"]
)
def test_the_matrix_notices_a_broken_rule(step: str, broken: str, name: str, make: Callable[[], Place]) -> None:
    outcome = run_case(Case(step), name, make, broken=broken)
    assert (outcome.lost > 0, outcome.doubled > 0) == (step == "before commit", step == "after the snapshot")
