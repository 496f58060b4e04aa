"""A world that changes: somebody else acts on the systems of a job between any two of its steps."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.world.play import ROUNDS, Case, Deed
from tests.world.stage import JOB_AWAY, Act, Place, Sink, Source
from tests.world.table import PAGE, replaced
from tests.world.worlds import SYSTEMS, run

pytestmark = pytest.mark.smoke

_SOAK = int(os.environ.get("SOAK", "1"))
_EXAMPLES = 10 * _SOAK
_SHARE = 1 if _SOAK > 1 else 4
"""One of so many acts is played, always the same ones. All are in `make world` and `make soak`."""
_OF_SOURCES = ("before planning", "after planning", "while reading", "between runs")
_OF_SINKS = ("before HEAD", "before commit", "within commit", "after commit")


def _moment(system: str, act: Act) -> str:
    """Returns one moment at which the act can matter, each time the same one."""
    kind = SYSTEMS[system]
    usual = _OF_SOURCES if issubclass(kind, Source) else _OF_SINKS if issubclass(kind, Sink) else act.at
    moments = [moment for moment in usual if moment in act.at] or act.at
    return moments[zlib.crc32(f"{system} {act.name}".encode()) % len(moments)]


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() else tmp_path_factory.mktemp("world")
    return Place(folder, request.getfixturevalue("postgres"), request.getfixturevalue("ministack"))


_EACH = [(name, act) for name, system in SYSTEMS.items() for act in system.acts][::_SHARE]


@pytest.mark.parametrize(("system", "act"), _EACH, ids=[f"{name}-{act.name}" for name, act in _EACH])
def test_each_act_at_one_moment(place: Place, system: str, act: Act) -> None:
    run(Case(system, (Deed(act.name, _moment(system, act)),)), place)


def test_the_folder_of_a_job_is_missed(place: Place) -> None:
    [(_, first), *_] = run(Case("DeltaAppend", (Deed(JOB_AWAY.name, "between runs"),)), place)
    assert "'sink' has committed checkpoint 2 of this job" in str(first)
    assert "start_empty" in str(first)


def test_a_head_that_goes_back_is_refused(place: Place) -> None:
    [(_, first), *_] = run(Case("Checkpoints", (Deed("puts an older HEAD back", "between runs"),)), place)
    assert "says that checkpoint 1 is the latest, but checkpoint 2 was committed" in str(first)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(SYSTEMS)))
    choices = [act for act in SYSTEMS[name].acts if not act.alone]
    acts = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=2, unique_by=lambda act: act.name))
    deeds = (Deed(act.name, draw(st.sampled_from(act.at)), draw(st.integers(1, ROUNDS))) for act in acts)
    return Case(name, tuple(sorted(deeds, key=lambda deed: deed.round)), draw(st.integers(1, ROUNDS)))


@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize=_SOAK == 1,
    phases=(Phase.explicit, Phase.generate),  # a case has two acts at most; smaller ones would take minutes to find
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases())
def test_any_acts_at_any_moments(place: Place, case: Case) -> None:
    run(case, place)


def test_the_documentation_has_the_table() -> None:
    """``python -m tests.world table`` writes it."""
    page = PAGE.read_text()
    assert page == replaced(page)
