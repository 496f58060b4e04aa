"""A batch job over text files: the lines of a log, split and counted by level, into files; and the same to stdout."""

import os
import tempfile

from pyflink.common import Encoder, Types, WatermarkStrategy
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)

LOGS = {
    "alpha": ["INFO started", "WARN disk 91%", "INFO ready", "", "ERROR disk full"],
    "beta": ["INFO started", "INFO ready", "WARN clock skew", "INFO bye"],
}


def levels(line):
    words = line.split()
    if words:
        yield words[0]
        if words[-1] == "ready":
            yield "READY"


def main():
    folder = tempfile.mkdtemp()
    for host, lines in LOGS.items():
        with open(os.path.join(folder, f"{host}.log"), "w") as file:
            file.write("\n".join(lines))

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_parallelism(1)
    paths = [os.path.join(folder, f"{host}.log") for host in LOGS]
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths)
    counts = (
        env.from_source(source.process_static_file_set().build(), WatermarkStrategy.for_monotonous_timestamps(), "logs")
        .flat_map(levels)
        .map(lambda level: (level, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
    )
    counts.sink_to(
        FileSink.for_row_format(os.path.join(folder, "counts"), Encoder.simple_string_encoder())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("levels").with_part_suffix(".txt").build())
        .with_rolling_policy(RollingPolicy.default_rolling_policy())
        .build()
    )
    env.execute("into files")
    for root, _, names in os.walk(os.path.join(folder, "counts")):
        for name in (each for each in names if each.startswith("levels-")):
            print("ends with .txt:", name.endswith(".txt"))
            with open(os.path.join(root, name)) as file:
                print(file.read(), end="")

    env.from_collection(["b", "a", "b"]).map(lambda letter: (letter, 1)).key_by(lambda pair: pair[0]).reduce(
        lambda one, other: (one[0], one[1] + other[1])
    ).print()
    env.execute("to stdout")


if __name__ == "__main__":
    main()
