"""Checks, with our own tests, that the runner of PyFlink's tests reports what passes, fails and is left out."""

from __future__ import annotations

import json
from pathlib import Path

from tests.pyflink.suite import Result, child, judged

TESTS = """
import unittest

from pyflink.common import Configuration, Row, Types
from pyflink.datastream import DataStream, HashMapStateBackend, MapFunction
from pyflink.datastream.connectors.kafka import FlinkKafkaConsumer
from pyflink.datastream.connectors.pulsar import PulsarSource
from pyflink.datastream.formats.avro import AvroRowDeserializationSchema
from pyflink.datastream.tests.test_util import DataStreamTestSinkFunction
from pyflink.find_flink_home import _find_flink_home
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment, TableEnvironment
from pyflink.testing.test_case_utils import PyFlinkStreamingTestCase
from pyflink.util.java_utils import get_j_env_configuration


class Double(MapFunction):
    def map(self, value):
        return Row(value, 2 * value, None)


class Tests(PyFlinkStreamingTestCase):
    def setUp(self):
        super().setUp()
        get_j_env_configuration(self.env._j_stream_execution_environment).setString("a", "b")
        Configuration(j_configuration=1).set_integer("c", 1)
        self.sink = DataStreamTestSinkFunction()

    def test_typed(self):
        row = Types.ROW([Types.INT(), Types.LONG(), Types.STRING()])
        self.env.from_collection([3], Types.INT()).map(Double(), row).add_sink(self.sink)
        self.env.execute()
        self.assertEqual(self.sink.get_results(), ["+I[3, 6, null]"])
        self.assertEqual(self.sink.get_results(), [])

    def test_float(self):
        self.env.from_collection([1.1, None], Types.FLOAT()).add_sink(self.sink)
        self.env.execute()
        self.assertEqual(self.sink.get_results(), ["1.1", "null"])

    def test_connector(self):
        PulsarSource.builder()

    def test_former_name(self):
        FlinkKafkaConsumer("topic")

    def test_format(self):
        AvroRowDeserializationSchema.builder()

    def test_home(self):
        _find_flink_home()

    def test_misspelt_class(self):
        from pyflink.common import Roww

    def test_untyped(self):
        self.env.from_collection([(3, "a")]).add_sink(self.sink)
        self.env.execute()
        self.assertEqual(self.sink.get_results(True), ["(3, 'a')"])

    def test_false(self):
        self.assertEqual(1, 2)

    def test_java(self):
        with self.assertRaises(Exception):
            get_gateway().jvm.java.lang.String("a")

    def test_java_object(self):
        self.env.from_collection([3])._j_data_stream.print()

    def test_table(self):
        TableEnvironment.create(self.env)

    def test_sql(self):
        StreamTableEnvironment.create(self.env).execute_sql("select 1")

    def _partitioned(self, partitioner):
        check = get_gateway().jvm.org.apache.flink.python.util.PartitionCustomTestMapFunction
        pairs = self.env.from_collection([(n, n) for n in range(9)])
        stream = pairs.partition_custom(partitioner, lambda pair: pair[1])
        DataStream(stream._j_data_stream.map(check())).set_parallelism(3).add_sink(self.sink)
        self.env.execute()

    def test_partitions(self):
        self._partitioned(lambda key, count: key % count)

    def test_wrong_partitions(self):
        self._partitioned(lambda key, count: 0)

    def test_plan(self):
        self.env.from_collection([1]).rescale().map(lambda n: n).set_parallelism(3).add_sink(self.sink)
        nodes = eval(self.env.get_execution_plan())["nodes"]
        self.assertEqual([node["pact"] for node in nodes], ["Data Source", "Operator", "Data Sink"])
        self.assertEqual(nodes[1]["parallelism"], 3)
        self.assertEqual(nodes[1]["predecessors"], [{"id": nodes[0]["id"], "ship_strategy": "RESCALE"}])

    def test_plan_of_keys(self):
        self.env.from_collection([1]).key_by(lambda n: n).add_sink(self.sink)
        self.env.get_execution_plan()

    def test_absent_class(self):
        HashMapStateBackend()

    def test_absent_method(self):
        self.env.from_collection([3]).cache()

    def test_missing_method(self):
        self.env.no_such_method()
"""


def test_what_became_of_each_test_is_told(tmp_path: Path) -> None:
    file, report = tmp_path / "test_them.py", tmp_path / "report.json"
    file.write_text(TESTS)
    done = child("--test-file", str(file), "--report", str(report))
    assert done.returncode == 0, done.stderr
    results = {name.split("::")[-1]: (outcome, reason) for name, outcome, reason in json.loads(report.read_text())}
    assert {name: outcome for name, (outcome, _) in results.items()} == {
        "test_typed": "passed",
        "test_float": "passed",
        "test_connector": "left out",
        "test_former_name": "left out",
        "test_format": "left out",
        "test_home": "left out",
        "test_misspelt_class": "failed",
        "test_untyped": "passed",
        "test_false": "failed",
        "test_java": "left out",
        "test_java_object": "left out",
        "test_table": "left out",
        "test_sql": "left out",
        "test_partitions": "passed",
        "test_wrong_partitions": "failed",
        "test_plan": "passed",
        "test_plan_of_keys": "left out",
        "test_absent_class": "left out",
        "test_absent_method": "left out",
        "test_missing_method": "failed",
    }
    assert results["test_java"][1] == results["test_java_object"][1] == "needs a JVM"
    assert "use KafkaSource.builder()" in results["test_former_name"][1]
    assert "Dagster asset" in results["test_absent_method"][1]
    assert "no_such_method" in results["test_missing_method"][1]


def test_a_known_difference_is_no_failure_and_told_when_it_is_gone() -> None:
    name = "datastream/test_data_stream::Tests::test_function_with_error"
    assert judged(name, "failed", "x").outcome == "known"
    assert "no longer" in judged(name, "passed", "").reason
    assert judged("another", "failed", "x") == Result("another", "failed", "x")
