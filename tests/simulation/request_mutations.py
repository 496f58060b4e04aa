"""Breaks rules of requests one at a time. The simulation must notice each."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.checkpoint import request_inbox
from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import Answer, answer_key
from dagster_flinkpy.runtime.master.job_messages import AnswerRequest
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.requests.savepoints import SavepointCopy
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.mutations import ONE_STREAM, Wrapped, mutation
from tests.simulation.region_mutations import MUTATIONS

__all__ = ["MUTATIONS"]


@mutation(
    "a request is answered before its checkpoint is complete",
    JobState,
    "_on_acknowledged",
    "which is not complete",
    requests=0.8,
    partitioned=0,
)
def _(real: Wrapped, state: JobState, region: Any, ended: Any) -> None:
    real(state, region, ended)
    for checkpoint_id in list(state.requests.bound):
        for request in state.requests.bound.pop(checkpoint_id):
            del state.requests.open[request.request_id]
            state._tell(AnswerRequest(request, checkpoint_id, None, None))


@mutation(
    "an attempt carries out what a dead one has taken",
    RequestInbox,
    "_settle",
    "which",
    requests=0.8,
    crash=0.01,
)
def _(real: Wrapped, inbox: RequestInbox, request_id: str) -> Any:
    data, etag = inbox._store.get(answer_key(request_id))
    return None if Answer.from_bytes(data, request_id).final else etag


@mutation(
    "an attempt takes a request that was withdrawn or answered",
    request_inbox,
    "put_if",
    "and is",
    **{**ONE_STREAM, "requests": 0.8, "pause": 0.03, "regions": 0},
)
def _(real: Wrapped, store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    return store.put(key, data)


@mutation(
    "a job that restarts carries out a request without taking it over",
    RequestInbox,
    "take_over",
    "had taken",
    requests=0.8,
    restarts=1.0,
    task_fails=0.1,
)
def _(real: Wrapped, inbox: RequestInbox, former: RequestInbox) -> None:
    inbox._taken |= former._taken
    inbox._known |= set(former._taken)


@mutation(
    "a run that ends still writes the savepoint that it says it has given up",
    SavepointCopy,
    "give_up",
    "savepoint-.* though its request was said to have failed",
    **{
        **ONE_STREAM,
        **{"requests": 0.8, "asks": ("savepoint",), "native": 0.0, "regions": 0, "restarts": 0.9, "switch": 0.7},
        **{"fail_before": 0.05, "fail_after": 0.05, "outage": 0.9},
    },
)
def _(real: Wrapped, copy: SavepointCopy) -> bool:
    return True


@mutation(
    "who asked for a checkpoint is told that it has failed while HEAD is being replaced",
    JobState,
    "_advance",
    "is complete, though its request was said to have failed",
    **{
        **ONE_STREAM,
        **{"requests": 0.8, "asks": ("checkpoint",), "regions": 0, "restarts": 0.9},
        **{"fail_before": 0.05, "fail_after": 0.1, "outage": 0.9},
    },
)
def _(real: Wrapped, state: JobState) -> None:
    state.requests.completing = 0
    real(state)
