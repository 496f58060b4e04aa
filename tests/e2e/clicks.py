"""The job of `tests.e2e.location` that runs on, in a `dagster dev`: its input, its runs and its output."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from playwright.sync_api import Page

from tests.e2e.chromium import fill_launchpad, rest
from tests.e2e.deployment import Deployment
from tests.e2e.location import write_clicks

__all__ = ["Clicks"]


class Clicks:
    """The job that runs on, and its input and output."""

    def __init__(self, deployment: Deployment, page: Page) -> None:
        self._deployment, self._page = deployment, page
        self._written: list[list[str]] = []

    def write(self, *sites: str) -> None:
        """Writes another file of clicks."""
        self._written.append(list(sites))
        write_clicks(self._deployment.home, len(self._written), list(sites))

    def start(self) -> str:
        """Starts a run that goes on, and returns its id."""
        rest(self._page)
        config = {"ops": {"clicks": {"config": {"epochs": 0}}}}
        run = self._deployment.launch("small", "clicks_restart", config)
        return str(self._deployment.until("the job is started", lambda: run in self.at_work() and run))

    def at_work(self) -> list[str]:
        """Returns the runs that have begun and not ended."""
        runs = self._deployment.runs(pipelineName="clicks_restart", statuses=["STARTED"])
        return [run["runId"] for run in runs]

    def await_rows(self) -> None:
        """Waits until each click is in the table, with its number."""
        counts: Counter[str] = Counter()
        expected = []
        for site in (site for sites in self._written for site in sites):
            counts[site] += 1
            expected.append((site, counts[site]))

        def rows() -> list[tuple[str, int]]:
            files = (self._deployment.home / "tables" / "clicks").glob("*.parquet")
            return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())

        self._deployment.until("the rows", lambda: rows() == sorted(expected))

    def await_end(self, run: str, status: str) -> None:
        """Waits until a run has ended."""
        self._deployment.until(f"the run is {status}", lambda: self._deployment.runs(runIds=[run], statuses=[status]))

    def launch_from_page(self, job: str, config: str | None = None) -> None:
        """Launches a run of one of the jobs around the job, with the button of the launchpad."""
        launchpad = f"{self._deployment.url}/locations/small/jobs/clicks_{job}/playground"
        if config is None:
            self._page.goto(launchpad)
        else:
            fill_launchpad(self._page, launchpad, config)
        self._page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
        self._page.wait_for_url(re.compile("/runs/"))
        rest(self._page)

    def asked(self, job: str) -> str:
        """Waits for a run of one of the jobs around the job to succeed, and returns its log."""
        name = f"clicks_{job}"
        runs = self._deployment.until(name, lambda: self._deployment.runs(pipelineName=name, statuses=["SUCCESS"]))
        return self._deployment.log(runs[0]["runId"])

    def savepoints(self) -> list[Path]:
        """Returns the savepoints of the job."""
        return list((self._deployment.home / "checkpoints" / "clicks").glob("savepoint-clicks-*/_metadata"))
