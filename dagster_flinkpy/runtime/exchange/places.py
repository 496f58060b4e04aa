"""Which subtasks are connected, and where they are."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping

from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, JobVertex
from dagster_flinkpy.runtime.shuffle.channel_selectors import downstream_subtasks, upstream_subtasks

__all__ = ["CREDIT", "Places", "address_towards", "chains_of", "input_channels", "output_channels"]

Places = Mapping[tuple[str, int], str]
"""The name of the slot that has a subtask of a region, by operator and index, inputs first."""

CREDIT = 2
"""For how many buffers a channel has room (Flink: ``taskmanager.network.memory.buffers-per-channel``). One is filled
while another one is read. With more of them, a barrier has to wait for longer behind records under back-pressure."""


def chains_of(graph: JobGraph, stage: int) -> list[list[JobVertex]]:
    """Returns the chains of a stage: operators that chained edges join (Flink: ``OperatorChain``), inputs first.

    Each is a task of its own. In a task of two chains, a full channel of one would stop the other, for whose barrier
    the reader of the channel may wait.
    """
    chain_of: dict[str, list[JobVertex]] = {}
    for vertex in graph.stage_vertices(stage):
        joined = [chain_of[e.source] for e in graph.inputs(vertex.uid) if graph.is_chained(e)]
        chain = joined[0] if joined else []
        for other in joined[1:]:
            if other is not chain:
                chain += other
                chain_of.update((each.uid, chain) for each in other)
        chain.append(vertex)
        chain_of[vertex.uid] = chain
    return list({id(chain): chain for chain in chain_of.values()}.values())


def output_channels(graph: JobGraph, vertices: Iterable[JobVertex], index: int) -> Iterator[tuple[JobEdge, int]]:
    """Yields the edges through which subtasks of operators send, each with the receiving subtasks."""
    for vertex in vertices:
        for edge in graph.outputs(vertex.uid) if index < vertex.parallelism else ():
            if not graph.is_chained(edge):
                targets = graph.vertex(edge.target).parallelism
                for target in downstream_subtasks(edge.partitioner.kind, index, vertex.parallelism, targets):
                    yield edge, target


def input_channels(graph: JobGraph, vertices: Iterable[JobVertex], index: int) -> Iterator[tuple[JobEdge, int]]:
    """Yields the edges from which subtasks of operators receive, each with the sending subtasks."""
    for vertex in vertices:
        for edge in graph.inputs(vertex.uid) if index < vertex.parallelism else ():
            if not graph.is_chained(edge):
                sources = graph.vertex(edge.source).parallelism
                for sender in upstream_subtasks(edge.partitioner.kind, index, sources, vertex.parallelism):
                    yield edge, sender


def address_towards(host: str, port: int) -> str:
    """Returns the address of this machine as others in the network of a host see it."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])
