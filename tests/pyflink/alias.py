"""Lets PyFlink's own programs and tests run as they are: ``import pyflink`` finds ``dagster_flinkpy``; see suite.py.

Names that this library does not have are found, too. A test that uses one is skipped, with the reason.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import unittest
from collections.abc import Sequence
from contextlib import suppress
from functools import partial, partialmethod
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dagster_flinkpy.common import Configuration
from dagster_flinkpy.common.former_names import missing
from dagster_flinkpy.common.text import to_text
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner
from dagster_flinkpy.datastream import DataStream, RuntimeExecutionMode, StreamExecutionEnvironment
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import local_executor
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.pyflink import stand_ins
from tests.pyflink.stand_ins import NO_JVM, TABLE_API, leave_out
from tests.pyflink.test_signatures import ABSENT
from tests.runtime.harness import run_rows

_WITHOUT = {
    "pyflink.table": TABLE_API,
    "pyflink.java_gateway": NO_JVM,
    "pyflink.pyflink_gateway_server": "reads the log file of Flink's worker",
    "pyflink.util": NO_JVM,
    "pyflink.fn_execution": NO_JVM,
    "pyflink.find_flink_home": NO_JVM,
    "pyflink.datastream.formats.avro": "Spark reads and writes formats",
    "pyflink.datastream.formats.csv": "Spark reads and writes formats",
    "pyflink.datastream.formats.orc": "Spark reads and writes formats",
    "pyflink.datastream.formats.parquet": "Spark reads and writes formats",
}
_STAND_INS = ("pyflink.table", "pyflink.java_gateway")
_ABSENT = {path: why for why, paths in ABSENT.items() for path in paths.split()}
_RESULTS: dict[int, list[Any]] = {}


class _Absent(type):
    """The metaclass of classes that may be imported, named and extended, but not used."""

    reason: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        leave_out(cls.reason)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        leave_out(cls.reason)


def absent(name: str, reason: str) -> Any:
    """Returns a stand-in for something that this library does not have."""
    return _Absent(name, (), {"reason": reason})


def why_absent(name: str, owner: str | None = None) -> str | None:
    """Returns why a name of a module or class is absent, or None if it should exist."""
    if name.startswith(("_j_", "get_java_", "get_gateway")):
        return NO_JVM
    if name in ("_from_proto", "_to_proto"):
        return "absent: internal to PyFlink"
    if isinstance(former := missing("pyflink", name), ImportError):
        return f"absent: {former.msg.partition(': ')[2]}"
    end = f".{owner}.{name}" if owner else f".{name}"
    why = next((why for path, why in _ABSENT.items() if path.endswith(end)), None)
    return why and f"absent: {why[0].lower()}{why[1:]}"


def _module(name: str, ours: ModuleType | None, reason: str | None) -> ModuleType:
    """Creates a module of PyFlink with our contents. A name that is neither there nor known as absent fails."""

    def get(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(attribute)
        if ours is not None:
            with suppress(AttributeError, ImportError):  # the latter says what replaces a former name
                return getattr(ours, attribute)
        why = reason or why_absent(attribute)
        if why is None:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return absent(attribute, why)

    module = ModuleType(name)
    module.__getattr__ = get
    return module


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        # `from a import B` looks for a module `a.B` if `a` has no B; no module of PyFlink has such a name.
        is_pyflink = fullname.split(".")[0] == "pyflink" and fullname.islower()
        return ModuleSpec(fullname, self, is_package=True) if is_pyflink else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = spec.name
        if name.startswith(("pyflink.testing", "pyflink.datastream.tests", "pyflink.util")):
            return _module(name, sys.modules[__name__], NO_JVM)
        for prefix, reason in _WITHOUT.items():
            if f"{name}.".startswith(f"{prefix}."):
                return _module(name, stand_ins if prefix in _STAND_INS else None, reason)
        try:
            return _module(name, importlib.import_module(name.replace("pyflink", "dagster_flinkpy", 1)), None)
        except ModuleNotFoundError:
            reason = NO_JVM if name.startswith("pyflink.datastream.connectors.") else None
            return _module(name, None, reason)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Makes ``pyflink`` this library in this process, and runs its jobs here, without Spark."""

    def on_harness(self: JobAttempt, epoch: EpochJob) -> list[WireRow]:
        return run_rows(epoch)

    sys.meta_path.insert(0, _Finder())
    logging.getLogger("dagster_flinkpy").setLevel(logging.WARNING)  # some programs log to standard output
    JobAttempt._on_spark = on_harness
    local_executor.start_server = lambda: None
    stand_ins.install()
    DataStream.add_sink = _add_sink
    StreamExecutionEnvironment._j_stream_execution_environment = absent("StreamExecutionEnvironment", NO_JVM)
    Configuration.__init__ = partialmethod(_init_configuration, Configuration.__init__)


# --- what takes the place of PyFlink's helpers for tests -------------------------------------------------------------


def _add_sink(stream: DataStream, sink: Any) -> DataStream:
    if not isinstance(sink, DataStreamTestSinkFunction):
        leave_out(NO_JVM)
    return DataStream.map(stream, partial(_keep, id(sink), stream.get_type()))


def _keep(sink: int, type_info: TypeInformation, value: Any) -> None:
    # Found again by name: this module may travel by value.
    importlib.import_module("tests.pyflink.alias")._RESULTS.setdefault(sink, []).append((type_info, value))


def _init_configuration(self: Configuration, init: Any, *arguments: Any, j_configuration: Any = None) -> None:
    init(self, *arguments)


class _Settings:
    """Settings of the JVM's side, which are accepted and do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def get_j_env_configuration(environment: Any) -> Any:
    """Returns an object that accepts the settings that tests make for Flink's own processes."""
    return _Settings()


class DataStreamTestSinkFunction:
    """Keeps the records that ``add_sink`` gets."""

    def get_results(self, is_python_object: bool = False, stringify: bool = True) -> list[Any]:
        """Returns the records since the last call, as Java shows them or as Python objects."""
        found = _RESULTS.pop(id(self), [])
        if not is_python_object:
            return [to_text(type_info, value) for type_info, value in found]
        return [str(value) if stringify else value for _, value in found]

    def clear(self) -> None:
        """Deletes the kept records."""
        _RESULTS.pop(id(self), None)


class SecondColumnTimestampAssigner(TimestampAssigner):
    """Uses the second field as time."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class PyFlinkTestCase(unittest.TestCase):
    """A test with a folder for its class."""

    @classmethod
    def setUpClass(cls) -> None:
        cls._folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls._folder.cleanup)
        cls.tempdir = cls._folder.name


class _EnvironmentTestCase(PyFlinkTestCase):
    mode = RuntimeExecutionMode.STREAMING

    def setUp(self) -> None:
        super().setUp()
        self.env = StreamExecutionEnvironment.get_execution_environment()
        self.env.set_parallelism(2)
        self.env.set_runtime_mode(self.mode)


class PyFlinkStreamingTestCase(_EnvironmentTestCase):
    """A test with an environment."""


class PyFlinkBatchTestCase(_EnvironmentTestCase):
    """A test with an environment in batch mode."""

    mode = RuntimeExecutionMode.BATCH


PyFlinkITTestCase = PyFlinkUTTestCase = PyFlinkStreamTableTestCase = PyFlinkTestCase
