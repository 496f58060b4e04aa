"""Commands of the documentation exist, and take the arguments that they are given there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from dagster._cli import create_dagster_cli

from dagster_flinkpy.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
_BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"flinkpy": main, "dagster": create_dagster_cli()}
_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Command:
    page: str
    line: str
    """Without the variables in front of it."""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def commands_of(page: Path) -> Iterator[Command]:
    for block in _BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                yield Command(page.name, re.sub(r"^(?:[A-Z_]+=\S+ +)+", "", part.strip()))


COMMANDS = [command for page in PAGES for command in commands_of(page) if command.line]


def parse(program: click.Command, words: list[str]) -> None:
    """As the program parses its arguments; runs nothing.

    Raises:
        click.UsageError: There is no such command or option, or one is missing.
    """
    context = program.make_context("x", list(words))
    while isinstance(context.command, click.Group):
        # What a group leaves of its arguments is its command and the arguments of that.
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command.line[:60]}")
def test_command(command: Command) -> None:
    assert "<" in command.line or subprocess.run(["bash", "-nc", command.line], check=False).returncode == 0
    program, *words = command.words
    if (known := _PROGRAMS.get(Path(program).name)) is not None:
        parse(known, words)
    elif program == "make":
        assert {word for word in words if "=" not in word} <= _TARGETS


def test_a_command_with_an_unknown_option_is_found() -> None:
    assert shutil.which("bash")
    for line in ("flinkpy checkpoints lists D", "flinkpy checkpoints list --all D", "flinkpy state read D --uid x"):
        with pytest.raises(click.UsageError):
            parse(main, line.split()[1:])
    assert {"flinkpy", "dagster", "make"} <= {Path(command.words[0]).name for command in COMMANDS}
