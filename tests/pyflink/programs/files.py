import os
import tempfile

from pyflink.common import Encoder, Row, Types, WatermarkStrategy
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource


def contents(folder):
    for root, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            with open(os.path.join(root, name)) as file:
                yield from file.read().splitlines()


def main():
    folder = tempfile.mkdtemp()
    os.mkdir(f"{folder}/in")
    for i in range(3):
        with open(f"{folder}/in/{i}.txt", "w") as file:
            file.write(f"line {i}\r\n\nünë {i}\nlast {i}")
    with open(f"{folder}/in/.hidden", "w") as file:
        file.write("hidden")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)

    def lines(*paths):
        source = (
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths)
            .process_static_file_set()
            .build()
        )
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "lines")

    def sink(name):
        return (
            FileSink.for_row_format(f"{folder}/{name}", Encoder.simple_string_encoder())
            .with_output_file_config(
                OutputFileConfig.builder().with_part_prefix("pre").with_part_suffix(".txt").build()
            )
            .with_rolling_policy(RollingPolicy.default_rolling_policy())
        )

    lines(f"{folder}/in").sink_to(sink("copy").build())
    lines(f"{folder}/in/0.txt", f"{folder}/in/2.txt").map(
        lambda v: (v, len(v)), Types.TUPLE([Types.STRING(), Types.INT()])
    ).sink_to(sink("tuples").with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    numbers = env.from_source(NumberSequenceSource(1, 10), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    numbers.map(lambda v: Row(v, "x"), Types.ROW([Types.LONG(), Types.STRING()])).sink_to(sink("rows").build())
    numbers.map(lambda v: v * 0.5, Types.DOUBLE()).sink_to(sink("doubles").build())
    env.execute()
    for name in ("copy", "tuples", "rows", "doubles"):
        for line in contents(f"{folder}/{name}"):
            print(name, line)
    names = [name for _, _, found in os.walk(folder) for name in found if name.startswith("pre-")]
    print("names", all(name.endswith(".txt") for name in names))


if __name__ == "__main__":
    main()
