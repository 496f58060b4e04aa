"""What a blocking edge keeps of what was written to it, so that the operators behind it can be recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.json_records import Count, Json, JsonRecord

__all__ = ["EdgeHistory"]


@dataclass(frozen=True)
class EdgeHistory(JsonRecord, omit_defaults=True):
    """The retained outputs of the operator that writes a blocking edge, the oldest first, without a gap."""

    after: Count = 0
    """The checkpoint since which all is there; 0 for the beginning of the job."""
    outputs: tuple[Json, ...] = ()
    """What was written in each epoch, as in ``OperatorState.in_flight``, and with it the ``checkpoint`` that was the
    first to name it, when that was triggered (``written_ms``), and whether nothing was in flight at its barriers
    (``settled``)."""

    def grown(
        self,
        outputs: Iterable[Mapping[str, Json]],
        checkpoint_id: int,
        now_ms: int,
        retain: timedelta,
        *,
        settled: bool,
    ) -> EdgeHistory:
        """Returns what the next checkpoint keeps.

        Args:
            outputs: What was written since the one before.
            checkpoint_id: The checkpoint.
            now_ms: When it was triggered, in milliseconds since 1970.
            retain: How long outputs are kept.
            settled: Whether nothing is in flight at its barriers.
        """
        kept = list(self.outputs)
        for output in outputs:
            before = kept[-1] if kept else {"watermark": None, "settled": True}
            is_news = output["watermark"] != before["watermark"] or (settled and not before["settled"])
            if output["segments"] or output["end_of_input"] or is_news:
                facts = {"checkpoint": checkpoint_id, "written_ms": now_ms, "settled": settled}
                kept.append({**output, **facts})
        old = list(takewhile(lambda each: each["written_ms"] < now_ms - to_millis(retain), kept))
        return EdgeHistory(old[-1]["checkpoint"] if old else self.after, tuple(kept[len(old) :]))

    def since(self, checkpoint_id: int) -> tuple[Json, ...] | None:
        """Returns what was written after a checkpoint, 0 for the beginning of the job; None if that is not known.

        It is not known either if something was in flight at the barriers of the checkpoint: sinks have written that
        later, with what they have written of later epochs.
        """
        if checkpoint_id == 0:
            return self.outputs if self.after == 0 else None
        if checkpoint_id not in self.choices:
            return None
        return tuple(each for each in self.outputs if each["checkpoint"] > checkpoint_id)

    def replaced_since(self, checkpoint_id: int) -> EdgeHistory:
        """Returns it after sinks have replaced what they had written since a checkpoint, 0 for all.

        Their rows of all these epochs are in later checkpoints now. So :meth:`since` takes none of them any more.
        """
        outputs = ({**each, "settled": False} if each["checkpoint"] > checkpoint_id else each for each in self.outputs)
        return replace(self, outputs=tuple(outputs))

    @property
    def choices(self) -> list[int]:
        """The checkpoints that :meth:`since` takes besides the beginning of the job."""
        return list(dict.fromkeys(each["checkpoint"] for each in self.outputs if each["settled"]))
