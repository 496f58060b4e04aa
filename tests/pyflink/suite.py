"""Runs PyFlink's own example programs and its DataStream tests against this library: ``make pyflink-suite``.

Nothing from PyFlink is in this repository. The programs come from its wheel, which is installed without its jars. The
tests are in neither the wheel nor the source distribution, so they are fetched from Flink's repository. alias.py
answers ``import pyflink``, and jobs run in one process, without Spark. This file lists what is left out or known to
differ, with the reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.pyflink.generate import printed

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = ROOT / ".cache" / "flink-2.3.0"
REPOSITORY, TAG = "https://github.com/apache/flink", "release-2.3.0"
TESTS = ["flink-python/pyflink/common/tests", "flink-python/pyflink/datastream/tests"]
TIMEOUT = 900
"""Timeout in seconds for one example, or one file of tests."""

TABLE_API, SERVER = "needs the Table API", "needs a server, and a connector from a jar"
LEFT_OUT = {
    "examples/table/*": TABLE_API,
    "examples/datastream/streaming_word_count": TABLE_API,
    "examples/datastream/connectors/*": SERVER,
    "examples/datastream/asyncio/*": "needs a server",
    "*_completeness*": "compares PyFlink with Flink's Java classes",
    "*test_connectors*": "needs a JVM",
    "*test_state_backend*": "there are no classes for state backends",
    "*test_checkpoint_storage*": "there is one kind of checkpoint storage",
}
"""Examples and tests that do not run, by name, with the reasons."""

KNOWN = {
    "*BatchTests::test_keyed_min_by_and_max": "a list cannot be a key",
    "*::test_from_collection_with_data_types": "a number that is too large for SHORT does not wrap round",
    "*::test_function_with_error": "an error of a function is a UserFunctionError, not a Py4JJavaError",
    "*::test_get_set_externalized_checkpoints_*": "checkpoints are kept by default",
    "*::test_non_iterable_result": "the error of a result of async_invoke() that is no list is another",
    "*::test_none_result": "the error of a result of async_invoke() that is no list is another",
    "*::test_row_type": "str() of a type is its declaration",
    "*::test_run_async_function_in_thread_mode": "there are no modes of execution, and it runs",
    "*::test_tuple_type": "str() of a type is its declaration",
}
"""Tests known to fail, by name, and why. docs/api/from-pyflink.md has each difference in its table."""

PRINTS = {
    "examples/datastream/basic_operations": "3487f44041a37faa",
    "examples/datastream/event_time_timer": "817fcd0dff6ff84b",
    "examples/datastream/process_json_data": "08772273013245a8",
    "examples/datastream/state_access": "d6e3b96bcf5e5f68",
    "examples/datastream/windowing/session_with_dynamic_gap_window": "2f44a8f49e463c4b",
    "examples/datastream/windowing/session_with_gap_window": "5747ffc82773660b",
    "examples/datastream/windowing/sliding_time_window": "f1b8286095f18dbd",
    "examples/datastream/windowing/tumbling_count_window": "96f41cfe740f7a06",
    "examples/datastream/windowing/tumbling_time_window": "b851c5ad5a75f242",
    "examples/datastream/word_count": "a3d4f6322b420c75",
}
"""What an example prints under PyFlink 2.3.0: first 16 digits of the SHA-256 of its lines, sorted."""


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str
    """passed, failed, known, left out"""
    reason: str = ""


# --- in the parent ---------------------------------------------------------------------------------------------------


def package() -> Path:
    """Returns the folder of the installed PyFlink, which is not imported."""
    spec = importlib.util.find_spec("pyflink")
    if spec is None or not spec.origin:
        raise SystemExit("PyFlink is not installed here: run `make pyflink-suite`")
    return Path(spec.origin).parent


def fetch_tests() -> Path | str:
    """Returns the checkout with the tests, or why there is none."""
    if not CHECKOUT.exists():
        partial = CHECKOUT.with_suffix(".partial")
        git = ["git", "-C", str(partial)]
        clone = ["git", "clone", "--quiet", "--depth=1", "--filter=blob:none", "--no-checkout", f"--branch={TAG}"]
        for command in (
            ["rm", "-rf", str(partial)],
            [*clone, REPOSITORY, str(partial)],
            [*git, "sparse-checkout", "set", *TESTS],
            [*git, "checkout", "--quiet"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
            if done.returncode:
                return done.stderr.strip().splitlines()[-1]
        partial.rename(CHECKOUT)
    return CHECKOUT


def reason_for(name: str, reasons: dict[str, str]) -> str | None:
    """Returns the reason of the first matching pattern."""
    return next((why for pattern, why in reasons.items() if fnmatch(name, pattern)), None)


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one example, or one file of tests, in a separate process."""
    command = [sys.executable, "-m", "tests.pyflink.suite", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no end after {TIMEOUT} seconds")


def run_examples(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.rglob("*.py")):
        name = f"examples/{path.relative_to(folder).with_suffix('').as_posix()}"
        if path.name == "__init__.py":
            continue
        if reason := reason_for(name, LEFT_OUT):
            yield Result(name, "left out", reason)
            continue
        done = child("--example", str(path))
        digest = hashlib.sha256(printed(done.stdout).encode()).hexdigest()[:16]
        if done.returncode:
            yield judged(name, "failed", done.stderr.strip().splitlines()[-1])
        elif digest != PRINTS.get(name):
            yield judged(name, "failed", f"prints something else than under PyFlink ({digest})")
        else:
            yield judged(name, "passed", "")


def run_tests(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.rglob("test_*.py")):
        file = f"{path.parent.parent.name}/{path.stem}"
        if path.name == "test_util.py":
            continue
        if reason := reason_for(file, LEFT_OUT):
            yield Result(file, "left out", reason)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report.json"
            done = child("--test-file", str(path), "--report", str(report))
            results = json.loads(report.read_text()) if report.exists() else []
        if not results:
            yield Result(file, "failed", (done.stderr or done.stdout).strip().splitlines()[-1])
        for name, outcome, reason in results:
            yield judged(f"{file}::{name}", outcome, reason)


def judged(name: str, outcome: str, reason: str) -> Result:
    """Returns a result, compared with the known failures."""
    known = reason_for(name, KNOWN)
    if known and outcome == "failed":
        return Result(name, "known", known)
    if known and outcome == "passed":
        return Result(name, "passed", f"no longer differs; was: {known}")
    return Result(name, outcome, reason)


def show(results: list[Result]) -> None:
    width = max(len(each.name) for each in results)
    for each in results:
        print(f"{each.name:<{width}}  {each.outcome:<8}  {each.reason}".rstrip())
    totals = Counter(each.outcome for each in results)
    print("\n" + ", ".join(f"{totals[each]} {each}" for each in ("passed", "failed", "known", "left out")))
    for reason, count in Counter(each.reason for each in results if each.outcome == "left out").most_common():
        print(f"  left out: {count:>3}  {reason}")


# --- in a child ------------------------------------------------------------------------------------------------------


def run_example(path: str) -> None:
    import runpy

    from tests.pyflink import alias

    alias.install()
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


class _Recorder:
    """A pytest plugin that records the result of each test."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str, str]] = []

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        import pytest

        from tests.pyflink.alias import why_absent

        name = item.nodeid.split("::", 1)[-1]
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, pytest.skip.Exception):
            self.results.append((name, "left out", str(error.msg)))
        elif isinstance(error, AttributeError) and error.name:
            owner = error.obj if isinstance(error.obj, type) else type(error.obj)
            why = [why_absent(error.name, each.__name__) for each in owner.__mro__]
            reason = next(filter(None, why), None)
            self.results.append((name, "left out" if reason else "failed", reason or str(error)))
        elif error is not None:
            self.results.append((name, "failed", f"{type(error).__name__}: {error}".splitlines()[0]))
        elif call.when == "call":
            self.results.append((name, "passed", ""))

    def pytest_collectreport(self, report: Any) -> None:
        if report.skipped or report.failed:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            outcome = "left out" if report.skipped else "failed"
            self.results.append(("", outcome, text.strip().splitlines()[-1].removeprefix("Skipped: ")))


def run_test_file(path: str, report: str) -> None:
    import pytest

    from tests.pyflink import alias

    alias.install()
    recorder = _Recorder()
    options = ["--noconftest", "-c", os.devnull, "--rootdir", str(Path(path).parent), "--import-mode=importlib"]
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([*options, "-p", "no:cacheprovider", "-q", path], plugins=[recorder])
    Path(report).write_text(json.dumps(recorder.results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, help="a checkout of Flink, instead of one that is fetched")
    parser.add_argument("--example", help=argparse.SUPPRESS)
    parser.add_argument("--test-file", help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.example:
        return run_example(given.example)
    if given.test_file:
        return run_test_file(given.test_file, given.report)
    results = list(run_examples(package() / "examples"))
    tests = given.tests or fetch_tests()
    if isinstance(tests, Path):
        for folder in TESTS:
            results += run_tests(tests / folder)
    else:
        results.append(Result("tests", "left out", f"cannot be fetched from {REPOSITORY}: {tests}"))
    show(results)
    sys.exit(any(each.outcome == "failed" for each in results))


if __name__ == "__main__":
    main()
