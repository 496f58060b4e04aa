"""All systems of a world, by name, and how a case is played."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dagster_flinkpy.errors import FlinkPyError
from tests.world import buckets, checkpoints, file_sinks, file_sources, functions, lake, postgres, streams, topics
from tests.world.plain import PlainSink, PlainSource
from tests.world.play import Case, play
from tests.world.stage import JOB_AWAY, Place, Sink, Source, System

__all__ = ["SYSTEMS", "run"]

SYSTEMS: Mapping[str, type[System]] = {
    each.__name__: each
    for module in (file_sources, file_sinks, buckets, lake, postgres, topics, streams, functions, checkpoints)
    for each in module.SYSTEMS
}

for _sink in [each for each in SYSTEMS.values() if issubclass(each, Sink) and each.knows_the_job]:
    _sink.acts = (*_sink.acts, JOB_AWAY)


def run(case: Case, place: Place) -> list[tuple[str, FlinkPyError]]:
    """Plays a case in a folder of its own below the place's, and returns the errors of its runs."""
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        here = replace(place, folder=Path(folder))
        system = SYSTEMS[case.system](here)
        source = system if isinstance(system, Source) else PlainSource(here)
        sink = system if isinstance(system, Sink) else PlainSink(here)
        try:
            return play(case, source, sink, [system])
        finally:
            system.close()
