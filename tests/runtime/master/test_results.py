from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.errors import (
    CheckpointError,
    FlinkPyError,
    SourceReadError,
    UnsupportedKeyTypeError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.failure import error_from_json, error_to_json, user_error
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, WireRow, encode_buffer


def row(kind: Kind, payload: bytes | pa.Buffer, *, channel: int = 0, seq: int = 0) -> WireRow:
    return WireRow(0, NO_EDGE, channel, seq, kind, pa.py_buffer(payload))


def ack(uid: str, subtask: int = 0, *, digest: str = "a", consumed: dict[str, str] | None = None) -> WireRow:
    state = SubtaskState(subtask).to_json()
    parts = {
        "checkpoint_id": 1,
        "uid": uid,
        "digest": digest,
        "consumed": consumed or {},
        "marked_ms": {},
        "state": state,
    }
    return row(Kind.ACK, json.dumps(parts).encode(), channel=subtask)


def failure(error: FlinkPyError, uid: str = "it", subtask: int = 0) -> WireRow:
    return row(Kind.FAILURE, error_to_json(error, uid, subtask))


def test_acknowledgements_are_known_by_uid_and_subtask() -> None:
    results = EpochResults.of([ack("b", 1), ack("a"), ack("b")], 1)
    assert set(results.states) == {("a", 0), ("b", 0), ("b", 1)}
    assert results.failure is None


def test_what_was_acknowledged_of_another_checkpoint_does_not_count() -> None:
    results = EpochResults.of([ack("a"), ack("b")], 2)
    assert results.states == {}
    with pytest.raises(CheckpointError, match=r"1 of 1 tasks did not acknowledge checkpoint 2: a/0"):
        results.check_complete(2, [Subtask("a", 0)])


def test_collected_records_are_in_the_order_of_their_task() -> None:
    def collect(values: list[int], channel: int, seq: int) -> WireRow:
        batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["value/collect"])
        return row(Kind.COLLECT, encode_buffer(batch), channel=channel, seq=seq)

    results = EpochResults.of([collect([3], 0, 1), collect([4], 1, 0), collect([1, 2], 0, 0)], 1)
    assert np.concatenate([c.to_numpy() for c in results.collected["collect"]]).tolist() == [1, 2, 3, 4]


def test_outputs_that_were_consumed_as_acknowledged_are_consistent() -> None:
    EpochResults.of([ack("a", digest="x"), ack("b", consumed={"a/0": "x"})], 1).check_consistent()


def test_an_output_consumed_from_another_attempt_is_refused() -> None:
    results = EpochResults.of([ack("a", 1, digest="x"), ack("b", 2, consumed={"a/1": "y"})], 1)
    with pytest.raises(
        CheckpointError, match=r"task b/2 consumed an output of task a/1 that differs .*not deterministic"
    ):
        results.check_consistent()


def test_two_consumers_of_different_attempts_are_found_out_whichever_was_acknowledged() -> None:
    for digest in "xy":
        results = EpochResults.of(
            [ack("a", digest=digest), ack("b", 0, consumed={"a/0": "x"}), ack("b", 1, consumed={"a/0": "y"})], 1
        )
        with pytest.raises(CheckpointError):
            results.check_consistent()


def test_the_failure_reported_is_a_cause_rather_than_a_consequence() -> None:
    missing, cause = CheckpointError("a barrier is missing"), SourceReadError("no such file")
    results = EpochResults.of([failure(missing, "a"), failure(cause, "z", 3), failure(missing, "b")], 1)
    assert results.failure is not None
    assert results.failure.task == ("z", 3)
    assert isinstance(results.failure.error, SourceReadError)


# --- errors on their way ----------------------------------------------------------------------------------------------


def test_a_user_error_keeps_its_parts() -> None:
    try:
        raise ValueError("boom")
    except ValueError as e:
        error = user_error(e, what="map()", operator="it", subtask=2, key=("a", 1))
    # The task that reports it may run other operators, too.
    back = error_from_json(error_to_json(error, "head_of_the_chain", 2))
    assert isinstance(back, UserFunctionError)
    assert (back.operator, back.subtask, back.key) == ("it", 2, "('a', 1)")
    assert back.args == ("map(), subtask 2, key ('a', 1), raised ValueError: boom",)
    assert "test_results.py" in back.user_traceback
    assert str(back).count("ValueError: boom") == 2


def test_a_typed_error_keeps_its_type() -> None:
    back = error_from_json(error_to_json(UnsupportedKeyTypeError("key is None"), "it", 0))
    assert type(back) is UnsupportedKeyTypeError
    assert str(back) == "key is None"


@pytest.mark.parametrize("name", ["os", "Exception", "annotations", "GoneError"])
def test_an_error_of_an_unknown_type_is_the_base_class(name: str) -> None:
    payload = json.dumps({"type": name, "message": "what", "operator": "it", "subtask": 0}).encode()
    assert type(error_from_json(payload)) is FlinkPyError
