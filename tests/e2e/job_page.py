"""Serves the page of a job with ``flinkpy job ui``, and reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page

from dagster_flinkpy.storage import StorageLocation

__all__ = ["card", "served", "share"]


@contextmanager
def served(location: StorageLocation) -> Iterator[str]:
    """Runs ``flinkpy job ui`` for the folder of a job, and yields the address that it prints."""
    command = [sys.executable, "-c", "from dagster_flinkpy.cli import main; main()", "job", "ui", location.url]
    variables = dict(os.environ)
    if location.endpoint_url:
        command += ["--endpoint-url", location.endpoint_url]
        variables |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            yield address
        finally:
            server.terminate()


def card(page: Page, uid: str) -> Locator:
    """Returns the box of an operator in the graph."""
    return page.locator(f".card[data-uid='{uid}']")


def share(page: Page, uid: str, state: str) -> int:
    """Returns the percentage of an operator's time that its card shows; 0 if it shows none yet."""
    words = card(page, uid).inner_text().replace("\n", " ").split()
    return int(words[words.index(state) + 1]) if state in words else 0
