"""``python -m benchmarks NAME ... [--peer NAME ...] [--json FILE]`` prints one JSON line per metric.

``python -m benchmarks state --profile`` prints where the CPU time of our programs goes.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = (
    "start",
    "key_groups",
    "sources",
    "kafka",
    "overhead",
    "sharing",
    "keyed",
    "live",
    "latency",
    "recovery",
    "slots",
    "forms",
    "nexmark",
    "state",
    "growth",
    "stateful",
    "state_sql",
    "flink_import",
    "forks",
    "scale",
    "continuous",
    "sinks",
    "dagster",
)
LONG = ("large_state",)
"""What takes so long that it runs only if it is named."""
PEERS = ("spark", "pyflink", "flinksql", "bytewax", "quix")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"benchmarks to run: {', '.join(NAMES + LONG)}; default: all but {', '.join(LONG)}",
    )
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=(), help="also run these other engines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the lines to this file")
    parser.add_argument("--profile", action="store_true", help="instead print where CPU time goes, by stage (state)")
    arguments, _ = parser.parse_known_args()
    names = arguments.names or NAMES
    unknown = sorted(set(names) - {*NAMES, *LONG})
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; the benchmarks are {', '.join(NAMES + LONG)}")
    # A benchmark's own options are known if it is the only one.
    options: dict[str, Any] = {}
    if len(names) == 1 and hasattr(module := import_module(f"benchmarks.{names[0]}"), "add_options"):
        own = argparse.ArgumentParser(add_help=False)
        module.add_options(parser)
        module.add_options(own)
        options = vars(own.parse_known_args()[0])
    arguments = parser.parse_args()
    if arguments.profile:
        if arguments.names != ["state"]:
            parser.error("--profile is for the benchmark state")
        print(import_module("benchmarks.state").profile())
        return
    lines = []
    for name in names:
        for result in import_module(f"benchmarks.{name}").run(peers=tuple(arguments.peer), **options):
            lines.append(json.dumps(result))
            print(lines[-1], flush=True)
    if arguments.json:
        arguments.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
