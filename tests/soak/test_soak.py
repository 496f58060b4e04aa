"""A short form of the soak test. ``make soak-continuous`` runs the job for half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_flinkpy.spark.sessions import stop_server
from tests.soak.growth import Held, Sample, growth
from tests.soak.job import SETTINGS, samples

EPOCHS = 42


def _sample(memory: float, threads: int = 10, **files: int) -> Sample:
    held = Held(memory, threads, 50)
    return Sample(held, held, held, files)


def _found(samples: list[Sample], *, jvm_memory: bool = True) -> list[str]:
    return growth(samples, jvm_memory=jvm_memory)


@pytest.mark.smoke
def test_growth_is_noticed() -> None:
    assert _found([_sample(300 + n % 7) for n in range(90)]) == []
    assert _found([_sample(300 + min(n, 30) * 10) for n in range(90)]) == []  # it warms up
    assert _found([_sample(300, threads=10 + n) for n in range(90)]) == [
        f"{role} threads: 54 -> 84" for role in ("driver", "jvm", "workers")
    ]
    assert _found([_sample(300, kept=9, leaked=100 + n) for n in range(90)]) == ["files leaked: 130 -> 160"]
    assert _found([_sample(300, shuffled=40 + 3 * (n % 20)) for n in range(90)]) == []  # until Java collects garbage
    leak = [_sample(300 + 3 * n) for n in range(90)]
    assert [text.split(":")[0] for text in _found(leak)] == [f"{r} memory_mb" for r in ("driver", "jvm", "workers")]
    assert [text.split(":")[0] for text in _found(leak, jvm_memory=False)] == ["driver memory_mb", "workers memory_mb"]


@pytest.mark.spark
def test_nothing_grows_with_the_epochs(tmp_path: Path, runtime_dir: Path) -> None:
    try:
        taken = list(samples(tmp_path, lambda epochs: epochs == EPOCHS))
    finally:
        stop_server(SETTINGS)
    assert growth(taken, jvm_memory=False) == []
