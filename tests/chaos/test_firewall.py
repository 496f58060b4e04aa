"""A firewall drops what live tasks send: a typed error, the other exchange, or the job goes on. Never a hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.firewall import CASES
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]
_CAN = (
    all(map(shutil.which, ("unshare", "ip", "mount")))
    and subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode == 0
)
_CHAOS = bool(os.environ.get("CHAOS"))
_ON_SPARK = "job 'job': each epoch is a Spark job (execution.exchange: spark), because "

SAYS = {
    "slots": "SlotLostError: slot default-",
    "driver": "SlotLostError: ",
    "slots later": "exact after 1 restarts; job 'job': tasks live in slots",
    "driver later": "exact after 1 restarts; job 'job': tasks live in slots",
    "auto slots": f"exact after 0 restarts; {_ON_SPARK}",
    "auto driver": f"exact after 0 restarts; {_ON_SPARK}",
    "auto slots later": "exact after 1 restarts; job 'job': tasks live in slots",
}
"""How what becomes of the job begins."""


@pytest.mark.chaos
@pytest.mark.skipif(not _CAN, reason="nobody but root can make networks here")
@pytest.mark.parametrize("case", CASES if _CHAOS else ("slots later",))
def test_a_firewall_drops_packets(case: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        ["unshare", "-n", "-m", sys.executable, "-m", "tests.chaos.firewall", case, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()[-1]
    assert said.startswith(SAYS[case]), said
    if case in ("slots", "driver"):
        assert "cannot be reached" in said or "cannot reach the driver" in said
    if case == "auto slots later":
        assert said.endswith("; this epoch is a Spark job"), said
