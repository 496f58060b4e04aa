"""Which operators of a program are assets, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSourceSpec,
    SinkSpec,
    SourceSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.job_assets import is_internal

__all__ = ["Show", "ShownOperators"]

Show: TypeAlias = Literal["operators", "tables"]
"""``operators``: each operator with a uid is an asset. ``tables``: each source and each sink is one."""


class ShownOperators:
    """The operators of a program that are assets.

    Args:
        graph: The program, with its blocking edges cut.
        show: Which operators are assets.

    Raises:
        ConfigurationError: ``show`` is neither of its values.
    """

    def __init__(self, graph: JobGraph, show: Show) -> None:
        if show not in get_args(Show):
            raise ConfigurationError(f"show={show!r}: use {' or '.join(map(repr, get_args(Show)))}")
        self._uids = set(_shown(graph, show))
        self.upstream: dict[str, list[str]] = {}
        """By uid, the nearest assets that an operator reads from, directly or through hidden operators."""
        for vertex in graph.vertices:
            self.upstream[vertex.uid] = self._nearest(_sources(graph, vertex), self.upstream)
        self.hidden = self._hidden(graph)
        """By uid of an asset's operator, the hidden operators whose numbers the asset shows.

        These are the operators between the asset and the assets that it reads from. An operator that no asset reads
        from is shown by the assets before it.
        """

    def _hidden(self, graph: JobGraph) -> dict[str, tuple[JobVertex, ...]]:
        readers: dict[str, list[str]] = {vertex.uid: [] for vertex in graph.vertices}
        for vertex in graph.vertices:
            for source in _sources(graph, vertex):
                readers[source].append(vertex.uid)
        behind: dict[str, list[str]] = {}
        for vertex in reversed(graph.vertices):
            behind[vertex.uid] = self._nearest(readers[vertex.uid], behind)
        found: dict[str, list[JobVertex]] = {v.uid: [] for v in graph.vertices if v.uid in self._uids}
        first = next(iter(found))
        for vertex in graph.vertices:
            if vertex.uid not in self._uids:
                for uid in behind[vertex.uid] or self.upstream[vertex.uid] or [first]:
                    found[uid].append(vertex)
        return {uid: tuple(vertices) for uid, vertices in found.items()}

    def _nearest(self, neighbours: Iterable[str], beyond: dict[str, list[str]]) -> list[str]:
        """The neighbours that are assets; in place of the others, what is known to be the nearest beyond them."""
        found = (each for uid in neighbours for each in ([uid] if uid in self._uids else beyond[uid]))
        return list(dict.fromkeys(found))


def _shown(graph: JobGraph, show: Show) -> list[str]:
    """The uids of the assets of a job. A job has at least one: sources need a uid."""
    named = [vertex for vertex in graph.vertices if vertex.uid_set and not is_internal(vertex)]
    if show == "operators":
        return [vertex.uid for vertex in named]
    ends = (SourceSpec, SinkSpec)
    return [v.uid for v in named if isinstance(v.spec, ends) and not isinstance(v.spec, BlockingEdgeSourceSpec)]


def _sources(graph: JobGraph, vertex: JobVertex) -> list[str]:
    """The operators that it reads from, also through a blocking edge."""
    sources = [edge.source for edge in graph.inputs(vertex.uid)]
    return [*sources, vertex.spec.source.sink_uid] if isinstance(vertex.spec, BlockingEdgeSourceSpec) else sources
