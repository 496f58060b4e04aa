"""Writes the signatures of PyFlink's public classes to signatures.json; see README.md. Run with PyFlink's Python."""

from __future__ import annotations

import enum
import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("signatures.json")

MODULES = [
    "common",
    "common.configuration",
    "common.execution_config",
    "common.serialization",
    "common.time",
    "common.typeinfo",
    "common.types",
    "common.watermark_strategy",
    "datastream",
    "datastream.checkpoint_config",
    "datastream.checkpointing_mode",
    "datastream.connectors.base",
    "datastream.connectors.file_system",
    "datastream.connectors.number_seq",
    "datastream.data_stream",
    "datastream.execution_mode",
    "datastream.functions",
    "datastream.output_tag",
    "datastream.state",
    "datastream.stream_execution_environment",
    "datastream.time_domain",
    "datastream.timerservice",
    "datastream.window",
    "metrics",
]


def default_of(parameter: inspect.Parameter) -> str | None:
    """Returns the default as text, or None if there is no default."""
    if parameter.default is inspect.Parameter.empty:
        return None
    return re.sub(r" at 0x[0-9a-f]+", "", repr(parameter.default))


def signature(function: Any) -> str | None:
    """Returns names and defaults of the parameters, or None if they cannot be determined."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return ", ".join(_parameter(p) for p in parameters if p.name not in ("self", "cls"))


def _parameter(p: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = default_of(p)
    return f"{stars}{p.name}" if default is None else f"{p.name}={default}"


def is_public(name: str) -> bool:
    return not name.startswith("_") and not name.startswith(("get_java", "from_j_", "to_j_"))


def describe(cls: type) -> dict[str, Any]:
    """Returns the signatures of the public methods, including those of inner classes."""
    if issubclass(cls, enum.Enum):
        return dict.fromkeys(cls.__members__)
    methods: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for name in dir(cls):
        if not is_public(name) or hasattr(object, name):
            continue
        member = inspect.getattr_static(cls, name)
        if inspect.isclass(member):
            classes[name] = describe(member)
        elif isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
            methods[name] = signature(getattr(cls, name))
    return methods | {name: described for name, described in classes.items() if described}


def snapshot(prefix: str) -> dict[str, Any]:
    """Returns the public classes by module and name. A class that is in several modules is described in the first."""
    found: dict[str, Any] = {}
    seen: set[type] = set()
    for module_name in MODULES:
        module = import_module(f"{prefix}.{module_name}")
        public = getattr(module, "__all__", None) or [n for n in vars(module) if is_public(n)]
        for name in sorted(public):
            value = getattr(module, name)
            own = getattr(value, "__module__", "").startswith(f"{prefix}.")
            if inspect.isclass(value) and own:
                described = {} if value in seen else describe(value)
                found.setdefault(module_name, {})[name] = described
                seen.add(value)
    return found


def main() -> None:
    TARGET.write_text(json.dumps(snapshot("pyflink"), indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
