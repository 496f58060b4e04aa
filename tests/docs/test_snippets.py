"""Every Python block of the documentation runs, and prints what the page says it prints.

The blocks of a page share a namespace. Those of the tutorial see only the files of the page. The expected output of a
block is in its ``# ->`` comments, or in the ``text`` block that follows it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from dagster import in_process_executor

from dagster_flinkpy.cli import main
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.pyflink.test_signatures import ABSENT
from tests.runtime.harness import run_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.glob("**/*.md"))}
TYPED = "tutorial"
"""The page whose blocks are typed, each in a separate process."""
IN_DG = "## 11. In a `dg` project"
"""The section of it that is about another folder."""
FROM_FLINK = "how-to/migrate-flink"
"""The page that begins with what Flink left behind."""
WITH_SNIPPETS = [n for n, path in PAGES.items() if "```python" in path.read_text() and n not in (TYPED, FROM_FLINK)]
FROM_SPARK = "how-to/migrate-spark"
ON_SPARK = ("api/spark", FROM_SPARK)
"""Pages whose blocks use Spark itself."""
FLINK_MOVED = Path(__file__).parents[1] / "fixtures" / "flink-moved"
"""What the program of that page left behind in Flink, and what it writes there without a stop."""
_BLOCK = re.compile(
    r"^```(?P<kind>python|bash)(?: title=\"(?P<file>[\w.]+)\")?\n(?P<code>.*?)^```\n"
    r"(?:\n*```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    code: str
    """Python, or commands."""
    line: int
    """The line of the page on which the code begins, from 1."""
    output: str
    """The expected output."""
    file: str | None = None
    """The file that the block belongs to, or None if it is typed in a shell."""
    kind: str = "python"


def snippets_of(page: str, *kinds: str) -> list[Snippet]:
    found = []
    for block in _BLOCK.finditer(page):
        if block["kind"] not in (kinds or ("python",)):
            continue
        said = re.findall(r"# -> (.*)$", block["code"], re.MULTILINE)
        output = block["output"] if block["output"] is not None else "".join(f"{line}\n" for line in said)
        line = page.count("\n", 0, block.start("code")) + 1
        found.append(Snippet(block["code"], line, output, block["file"], block["kind"]))
    return found


def run(snippets: list[Snippet], name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Runs the snippets of a page one after the other, and compares their output."""
    module = ModuleType("__main__")  # so that functions travel by value, as those of a script do
    monkeypatch.setitem(sys.modules, "__main__", module)
    for snippet in snippets:
        printed = StringIO()
        if snippet.kind == "bash":
            printed.write(commands_print(snippet))
        else:
            code = compile("\n" * (snippet.line - 1) + snippet.code, name, "exec", dont_inherit=True)
            with redirect_stdout(printed):
                exec(code, vars(module))
        assert printed.getvalue() == snippet.output, f"{name}, line {snippet.line}"
    return module


def commands_print(snippet: Snippet) -> str:
    """Runs the commands of this library, not those of Flink, and returns what they print, if the page shows it."""
    printed = ""
    for command in snippet.code.splitlines():
        program, *arguments = shlex.split(command)
        assert program in ("flinkpy", "flink")
        if program == "flinkpy":
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            assert result.exit_code == 0, f"{command}: {result.output}"
            printed += result.output.replace(Path.cwd().as_uri(), "file:///shop")
    return printed if snippet.output else ""


def story_of(name: str) -> list[Snippet]:
    """Returns the blocks of a page and its commands, and writes the program for them."""
    snippets = snippets_of(PAGES[name].read_text(), "python", "bash")
    (program,) = [snippet for snippet in snippets if snippet.file]
    Path(str(program.file)).write_text(program.code)
    return snippets


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes programs run in this process, in an empty folder. Only their DataFrames need Spark."""

    on_spark = JobAttempt._on_spark

    def on_harness(self: JobAttempt, job: EpochJob) -> Sequence[WireRow]:
        exchange = self._exchange
        if exchange._needs_live is None:
            return run_rows(job)
        exchange._config = replace(exchange._config, in_process=True)
        return on_spark(self, job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.spark] * (n in ON_SPARK)) for n in WITH_SNIPPETS])
def test_the_snippets_of_a_page_print_what_it_says(
    name: str, monkeypatch: pytest.MonkeyPatch, without_spark: Path, request: pytest.FixtureRequest
) -> None:
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("one_server")
    if name.startswith("dagster/"):
        (program,) = [snippet for snippet in snippets_of(PAGES["dagster/index"].read_text()) if snippet.file]
        Path(str(program.file)).write_text(program.code)
        monkeypatch.syspath_prepend(without_spark)
        monkeypatch.delitem(sys.modules, "words", raising=False)
    snippets = story_of(name) if name == FROM_SPARK else snippets_of(PAGES[name].read_text())
    assert snippets
    run(snippets, PAGES[name].name, monkeypatch)


def test_a_job_moves_from_flink_as_its_page_says(monkeypatch: pytest.MonkeyPatch, without_spark: Path) -> None:
    """In Flink, tests/flink_savepoint/make_fixtures.py has run the program of the page, and stopped it."""
    for folder in ("totals", "straight"):
        shutil.copytree(FLINK_MOVED / folder, without_spark / folder)
    shutil.copytree(FLINK_MOVED / "savepoint", without_spark / "savepoints" / "savepoint-1f2e3d")
    module = run(story_of(FROM_FLINK), PAGES[FROM_FLINK].name, monkeypatch)
    in_flink = sum(len(path.read_text().splitlines()) for path in (FLINK_MOVED / "totals").rglob("part-*"))
    assert 0 < in_flink < len(module.rows("straight"))


def in_process(command: list[object], folder: Path, *more_paths: str, said: str = "") -> str:
    """What a command prints in a new process."""
    done = subprocess.run(
        list(map(str, command)),
        input=said,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *more_paths])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def typed(steps: list[list[str]], folder: Path, *more_paths: str) -> list[str]:
    """What each process of `tests.docs.typed` prints."""
    printed = in_process([sys.executable, "-m", "tests.docs.typed"], folder, *more_paths, said=json.dumps(steps))
    return [json.loads(line) for line in printed.splitlines()]


def test_the_tutorial_runs_as_it_is_typed(tmp_path: Path) -> None:
    """Starts from an empty folder and follows the page. Each block runs in a new process that reads the file so far."""
    steps, run, shell = list[list[str]](), list[Snippet](), ""
    for snippet in snippets_of(PAGES[TYPED].read_text().partition(IN_DG)[0]):
        if snippet.file is not None:
            steps.append(["append", snippet.file, snippet.code])
            shell = snippet.file
            if not snippet.output:
                continue  # the next typed block reads it
        steps.append(["run", shell] if snippet.file is not None else ["run", shell, snippet.code])
        run.append(snippet)
    for snippet, printed in zip(run, typed(steps, tmp_path), strict=True):
        assert printed == snippet.output, f"line {snippet.line}"


def test_the_tutorial_materializes_all_in_one_process(monkeypatch: pytest.MonkeyPatch, without_spark: Path) -> None:
    snippets = snippets_of(PAGES[TYPED].read_text().partition(IN_DG)[0])
    module = run([s for s in snippets if s.file == "definitions.py"], PAGES[TYPED].name, monkeypatch)
    job = module.defs.resolve_implicit_global_asset_job_def()
    assert job.executor_def is in_process_executor
    assert [node.name for node in job.graph.nodes] == ["flights"]


def test_the_tutorial_runs_in_a_dg_project(tmp_path: Path) -> None:
    """In the project that the scaffolder fills; what is typed after step 7, in one new process."""
    steps, _, in_dg = PAGES[TYPED].read_text().partition(IN_DG)
    until_step_6, _, from_step_7 = steps.partition("## 7.")
    files = {"prepare.py": "", "definitions.py": ""}
    for snippet in snippets_of(until_step_6):
        if snippet.file in files:
            files[snippet.file] += snippet.code
    [console] = [snippet.code for snippet in snippets_of(from_step_7) if snippet.file == "console.py"]
    [loading] = snippets_of(in_dg)
    assert "from definitions import defs\n" in console
    files["console.py"] = console.replace("from definitions import defs\n", loading.code)
    [defs_yaml] = re.findall(r"^```yaml\n(.*?)^```", in_dg, re.MULTILINE | re.DOTALL)

    project = tmp_path / "flights"  # as `create-dagster project flights` makes it
    shutil.copytree(
        ROOT / "examples" / "dg_project", project, ignore=shutil.ignore_patterns("word_count", "resources*")
    )
    (project / "src" / "word_counts").rename(project / "src" / "flights")
    about = project / "pyproject.toml"
    about.write_text(about.read_text().replace("word_counts", "flights").replace("word-counts", "flights"))
    dg: list[object] = [Path(sys.executable).with_name("dg")]
    source = str(project / "src")
    in_process([*dg, "scaffold", "defs", "dagster_flinkpy.FlinkPipelineComponent", "flights"], project, source)
    pipeline = project / "src" / "flights" / "defs" / "flights"
    (pipeline / "pipeline.py").write_text(files.pop("definitions.py"))
    (pipeline / "defs.yaml").write_text(defs_yaml)
    in_process([*dg, "check", "defs"], project, source)
    for name, code in files.items():
        (project / name).write_text(code)
    in_process([sys.executable, "prepare.py"], project)
    shown = [snippet for snippet in snippets_of(from_step_7) if snippet.file is None]
    steps_in_console = ["run", "console.py", *(snippet.code for snippet in shown)]
    assert typed([steps_in_console], project, source) == ["".join(snippet.output for snippet in shown)]


def test_the_program_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, without_spark: Path) -> None:
    orders = without_spark / "orders"
    orders.mkdir()
    rows = {"customer": ["a", "b", "a"], "amount": [1.0, 2.0, 3.5], "time_ms": [1000, 2000, 3000]}
    pq.write_table(pa.table(rows), orders / "2024-01-01.parquet")
    page = (ROOT / "README.md").read_text().replace("s3://shop", str(without_spark))
    module = run(snippets_of(page), "README.md", monkeypatch)
    module.orders_env().execute()
    assert sorted(pq.read_table(without_spark / "totals").to_pylist(), key=str) == [
        {"customer": "a", "total": 1.0},
        {"customer": "a", "total": 4.5},
        {"customer": "b", "total": 2.0},
    ]
    assert {key.to_user_string() for asset in module.orders for key in asset.keys} == {
        "orders/orders",
        "orders/totals",
        "orders/totals_table",
    }


def test_the_page_for_pyflink_users_names_what_is_absent_and_why() -> None:
    table = PAGES["api/from-pyflink"].read_text().split("## Absent")[1]
    said = dict(re.findall(r"^\| (.*?) \| (.*) \|$", table, re.MULTILINE)[2:])
    wanted = {why: names.split() for why, names in ABSENT.items() if names.split()}
    assert said.keys() == wanted.keys()
    for why, names in wanted.items():
        written = {name.split(".")[-1] for name in re.findall(r"`(.*?)`", said[why])}
        missing = [name for name in names if name.split(".")[-1] not in written]
        assert not missing, why


def test_a_block_that_prints_something_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    page = "Words.\n\n```python\nx = 1\nprint(x)\n```\n\n```text\n2\n```\n"
    (snippet,) = snippets_of(page)
    assert (snippet.line, snippet.output) == (4, "2\n")
    with pytest.raises(AssertionError, match="page, line 4"):
        run([snippet], "page", monkeypatch)
    run(snippets_of("```python\nprint(3)  # -> 3\n```\n"), "page", monkeypatch)
