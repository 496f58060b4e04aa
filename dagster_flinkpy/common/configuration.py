"""Options by name (``pyflink.common.configuration``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["Configuration", "parse_duration", "parse_map", "parse_memory_size"]

_UNITS = {
    **dict.fromkeys(["", "ms", "milli", "millis", "millisecond", "milliseconds"], 0.001),
    **dict.fromkeys(["s", "sec", "secs", "second", "seconds"], 1),
    **dict.fromkeys(["m", "min", "minute", "minutes"], 60),
    **dict.fromkeys(["h", "hour", "hours"], 3600),
    **dict.fromkeys(["d", "day", "days"], 86400),
}
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_ENTRY = re.compile(r"""\s*([^:,'"{]+?)\s*:\s*('(?:[^']|'')*'|"(?:[^"]|"")*"|[^,'"]*?)\s*(?:,|$)""")
_MEMORY_UNITS = (
    ("", "b", "bytes"),
    ("k", "kb", "kibibytes"),
    ("m", "mb", "mebibytes"),
    ("g", "gb", "gibibytes"),
    ("t", "tb", "tebibytes"),
)


class Configuration:
    """Options that are stored as strings, and set and read with a type.

    Args:
        other: A configuration to copy the options from.
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._options: dict[str, str] = {} if other is None else other.to_dict()

    @classmethod
    def from_dict(cls, map: Mapping[str, str]) -> Configuration:
        """Returns the options of a dict."""
        check_argument("Configuration.from_dict()", map, Mapping, "a dict of options")
        configuration = cls()
        for key, value in map.items():
            configuration.set_string(key, value)
        return configuration

    def get_string(self, key: str, default_value: str) -> str:
        """Returns the option, or the default."""
        return self._options.get(key, default_value)

    def set_string(self, key: str, value: str) -> Configuration:
        """Sets an option.

        Raises:
            ConfigurationError: The value is None.
        """
        if value is None:
            raise ConfigurationError(f"option {key!r} needs a value, not None; leave it out for its default")
        self._options[key] = str(value)
        return self

    def get_integer(self, key: str, default_value: int) -> int:
        """Returns the option as a number, or the default.

        Raises:
            ConfigurationError: It is not a number.
        """
        try:
            return int(self._options[key]) if key in self._options else default_value
        except ValueError:
            raise ConfigurationError(f"option {key!r} is not a whole number: {self._options[key]!r}") from None

    def set_integer(self, key: str, value: int) -> Configuration:
        """Sets an option."""
        return self.set_string(key, str(value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """Returns the option as a boolean, or the default.

        Raises:
            ConfigurationError: It is neither ``true`` nor ``false``.
        """
        text = self._options.get(key, str(default_value)).lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"option {key!r} is neither true nor false: {text!r}")
        return text == "true"

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Sets an option."""
        return self.set_string(key, str(value).lower())

    def get_float(self, key: str, default_value: float) -> float:
        """Returns the option as a number, or the default.

        Raises:
            ConfigurationError: It is not a number.
        """
        try:
            return float(self._options.get(key, default_value))
        except ValueError:
            raise ConfigurationError(f"option {key!r} is not a number: {self._options[key]!r}") from None

    def set_float(self, key: str, value: float) -> Configuration:
        """Sets an option."""
        return self.set_string(key, str(float(value)))

    def key_set(self) -> set[str]:
        """Returns the names of all options."""
        return set(self._options)

    def contains_key(self, key: str) -> bool:
        """Returns whether the option is set."""
        return key in self._options

    def to_dict(self) -> dict[str, str]:
        """Returns a copy of all options."""
        return dict(self._options)

    def add_all_to_dict(self, target_dict: dict[str, str]) -> None:
        """Adds all options to a dict."""
        target_dict.update(self._options)

    def add_all(self, other: Configuration, prefix: str | None = None) -> Configuration:
        """Adds the options of another configuration, with a prefix before their names."""
        for key, value in other.to_dict().items():
            self._options[(prefix or "") + key] = value
        return self

    def remove_config(self, key: str) -> bool:
        """Removes an option, and returns whether it was set."""
        return self._options.pop(key, None) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._options == other._options

    def __hash__(self) -> int:
        return hash(frozenset(self._options.items()))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}={value}' for key, value in self._options.items())}}}"


def parse_duration(text: str, option: str | None = None) -> timedelta:
    """Parses a duration as Flink writes it: ``10 s``, ``500ms``, ``3 minutes``. A bare number means milliseconds.

    Args:
        text: The duration.
        option: The option that has it, for the message.

    Raises:
        ConfigurationError: It is not a duration.
    """
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS:
        what = "" if option is None else f"option {option!r} is "
        raise ConfigurationError(f"{what}not a duration: {text!r}; write '10 s', '500 ms', '3 min', '1 h' or '1 d'")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def parse_memory_size(text: str, option: str | None = None) -> int:
    """Returns the bytes of a size as Flink's options have it: a whole number with a unit, or of bytes.

    Args:
        text: Such as ``512 mb``, ``512m``, ``2g``, ``1 tebibytes`` or ``1000``.
        option: The option that has it, for the message.

    Raises:
        ConfigurationError: It is no such size.
    """
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    for power, names in enumerate(_MEMORY_UNITS):
        if found is not None and found[2] in names:
            return int(found[1]) << 10 * power
    what = "" if option is None else f"option {option!r}: "
    raise ConfigurationError(f"{what}{text!r} is not an amount of memory; write it like '512 mb' or '2 gb'")


def parse_map(text: str, option: str) -> dict[str, str]:
    """Parses what Flink's options have as a map: ``key1:value1,key2:'a value, in quotes'``.

    Args:
        text: The map. A quote within quotes is doubled.
        option: The option that has it, for the message.

    Raises:
        ConfigurationError: It is no such map.
    """
    found, at = dict[str, str](), 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise ConfigurationError(
                f"option {option!r} is no map: {text!r}; write it like \"key1:value1,key2:'a, b'\""
            )
        value, at = entry[2], entry.end()
        quote = value[:1]
        found[entry[1]] = value[1:-1].replace(2 * quote, quote) if quote in ("'", '"') else value
    return found
