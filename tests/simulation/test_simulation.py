"""Runs the seeds of CI, and checks that broken rules are noticed and that a seed can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def run(*options: str) -> tuple[int, str]:
    """Runs the command in separate processes: the order of sets is fixed, and no thread of another test runs along.

    Such a thread would take part, because the library is the world's as long as it is simulated. A failure names its
    seed.
    """
    command = [sys.executable, "-m", "tests.simulation", *options]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # else the command starts again with it
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.smoke
def test_invariants_hold() -> None:
    code, printed = run("--seeds", "40")
    assert code == 0, printed


@pytest.mark.smoke
def test_invariants_hold_with_live_tasks() -> None:
    code, printed = run("--live", "--seeds", "12")
    assert code == 0, printed


@pytest.mark.timeout(900)
def test_broken_rules_are_noticed() -> None:
    code, printed = run("--mutations", "--known", "--seeds", "1000")
    assert code == 0, printed


@pytest.mark.parametrize("live", [(), ("--live",)], ids=["stand-ins", "live"])
def test_a_seed_is_replayed_as_it_was(live: tuple[str, ...]) -> None:
    first, again, other = (run(*live, "--seed", seed) for seed in ("3", "3", "4"))
    assert first[0] == 0, first[1]
    assert first == again
    assert first != other


def test_a_violation_says_what_happened_and_how_to_see_it_again() -> None:
    broken = "sinks commit before HEAD is replaced"
    code, printed = run("--mutation", broken, "--seeds", "10")
    assert code == 1
    assert "became visible, but no completed checkpoint names it" in printed
    seed = printed.rpartition(" ")[2].strip()
    code, printed = run("--mutation", broken, "--seed", seed)
    assert code == 1
    assert "VIOLATION" in printed


@pytest.mark.smoke
def test_seeds_that_once_lost_rows() -> None:
    """A checkpoint expires as its acknowledgement comes."""
    for seed in ("1041", "1170", "1433"):
        code, printed = run("--seed", seed)
        assert code == 0, printed
