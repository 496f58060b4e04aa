"""A lease that nobody renews beside the attempt: with clocks of tests, attempts take over whenever they want."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.runtime.master.lease_keeper import LeaseKeeper

__all__ = ["IdleLeaseKeeper"]


class IdleLeaseKeeper(LeaseKeeper):
    """Has no thread. The lease lasts longer than a checkpoint may take, which renews it."""

    def __init__(self, checkpoint_timeout: timedelta) -> None:
        super().__init__(checkpoint_timeout + timedelta(minutes=1), current_millis)

    def keep(self, *_: Any) -> None:
        pass
