"""``python -m benchmarks NAME ... [--peer NAME ...] [--json FILE]`` prints one JSON line per metric."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

NAMES = (
    "start",
    "key_groups",
    "sources",
    "kafka",
    "overhead",
    "keyed",
    "forms",
    "state",
    "state_sql",
    "coordinator",
    "continuous",
    "sinks",
    "dagster",
)
PEERS = ("spark", "pyflink", "flinksql")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(NAMES)}; default: all")
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=(), help="also run these other engines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the lines to this file")
    arguments = parser.parse_args()
    names = arguments.names or NAMES
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; the benchmarks are {', '.join(NAMES)}")
    lines = []
    for name in names:
        for result in import_module(f"benchmarks.{name}").run(peers=tuple(arguments.peer)):
            lines.append(json.dumps(result))
            print(lines[-1], flush=True)
    if arguments.json:
        arguments.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
