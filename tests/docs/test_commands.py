"""The commands in the documentation exist and accept the arguments that are shown there."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from dagster._cli import create_dagster_cli
from dagster_dg_cli.cli import create_dg_cli

from dagster_flinkpy.cli import main

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
_BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = {"flinkpy": main, "dagster": create_dagster_cli(), "dg": create_dg_cli()}
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass(frozen=True)
class Command:
    page: str
    line: str
    """The words of the command, without variables before it."""

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
    """Parses the arguments as the program does, and runs nothing.

    Raises:
        click.UsageError: There is no such command or option, or one is missing.
    """
    context = program.make_context("x", list(words))
    while isinstance(context.command, click.Group):
        # The arguments that a group does not take are a command and its arguments.
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


class _Parsed(Exception):
    """The arguments are valid. Stops the program before it runs."""


def run_module(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ``python -m`` until the arguments are parsed. A module without a parser only has to exist.

    Raises:
        SystemExit: There is no such option.
    """
    module, *arguments = words
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    assert spec is not None and spec.origin is not None, module
    if "argparse" not in Path(spec.origin).read_text():
        return
    original = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser) -> None:
        original(self, arguments)
        raise _Parsed

    monkeypatch.setattr(sys, "argv", [spec.origin, *arguments])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    with pytest.raises(_Parsed):
        import_module(spec.name).main()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command.line[:60]}")
def test_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<" in command.line or subprocess.run(["bash", "-nc", command.line], check=False).returncode == 0
    program, *words = command.words
    if (known := _PROGRAMS.get(Path(program).name)) is not None:
        monkeypatch.chdir(ROOT / "examples" / "dg_project" if Path(program).name == "dg" else ROOT)
        parse(known, words)
    elif program == "make":
        assert {word for word in words if "=" not in word} <= _TARGETS
    elif Path(program).name.startswith("python") and words[:1] == ["-m"] and words[1:] != ["venv", ".venv"]:
        run_module(words[1:], monkeypatch)


def test_extras_that_pages_install_are_there() -> None:
    extras = set(metadata("dagster-flinkpy").get_all("Provides-Extra") or ())
    named = {
        extra
        for page in PAGES
        for names in re.findall(r"dagster-flinkpy\[([\w,]+)\]", page.read_text())
        for extra in names.split(",")
    }
    assert named and named <= extras


def test_a_command_with_an_unknown_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shutil.which("bash")
    for line in ("flinkpy checkpoints lists D", "flinkpy checkpoints list --all D", "flinkpy state read D --uid x"):
        with pytest.raises(click.UsageError):
            parse(main, line.split()[1:])
    with pytest.raises(SystemExit):
        run_module(["benchmarks", "--no-such-option"], monkeypatch)
    assert {"flinkpy", "dagster", "dg", "make"} <= {Path(command.words[0]).name for command in COMMANDS}
