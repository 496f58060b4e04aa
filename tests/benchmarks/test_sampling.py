from __future__ import annotations

import sys

from benchmarks import sampling


def test_profile() -> None:
    encode, user = (
        compile("f()", "/x/dagster_flinkpy/runtime/shuffle/wire.py", "exec"),
        compile("f()", "/x/j.py", "exec"),
    )
    stages: list[str] = []
    frame = {"f": lambda: stages.append(sampling._stage(sys._getframe(1)))}
    exec(encode, frame)
    exec(user, frame)
    assert stages == ["encode", "user code"]
    assert sampling.spent({"scan": 1.0}, {"scan": 3.0, "hash": 1.0}) == {"scan": 2.0, "hash": 1.0}
    rows = sampling.table({"sum": {"scan": 3.0}}, events=10**9).splitlines()
    assert rows[1].split() == ["scan", "3"] and rows[-1].split() == ["all", "3"]
