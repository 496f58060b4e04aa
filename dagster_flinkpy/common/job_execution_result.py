"""The result of a program (``pyflink.common.job_execution_result``)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobExecutionResult"]


@dataclass(frozen=True)
class JobExecutionResult:
    """The result of a run."""

    job_name: str
    job_id: str
    last_checkpoint_id: int | None
    net_runtime_ms: int

    def get_job_id(self) -> str:
        """Returns the id of the job."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """Returns how long the job ran, in milliseconds."""
        return self.net_runtime_ms
