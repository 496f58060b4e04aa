"""What the command does with a job's program: drained stops, checked restores. Everything runs in this process."""

from __future__ import annotations

import json
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner, Result

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli import main
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import NoEffectWarning
from dagster_flinkpy.orchestration.program import load_program, program_attempt
from dagster_flinkpy.orchestration.resources import SparkResource
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job as runtime_job
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt, run_rows
from tests.runtime.programs import FolderSink

PROGRAM = '''
from pathlib import Path

from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from tests.runtime.programs import EVENT, FolderSink, environment, events

HERE = Path(__file__).parent
RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(32)]


def build(uid="windows", width=2):
    """A window that the input never fills: only draining fires it."""
    env = environment(width)
    keyed = events(env, RECORDS, per_epoch=8).key_by("key")
    windows = keyed.window(TumblingEventTimeWindows(100_000)).reduce(lambda a, b: a).uid(uid)
    windows.sink_to(FolderSink(HERE / "sink")).uid("sink")
    return env


def stream(env, *more, width=2):
    return events(env, RECORDS)


def renamed():
    return build("others")


def bare():
    env = environment(1)
    events(env, RECORDS).key_by("key").count().name("bare")
    return env


def script():
    env = build()
    env.get_checkpoint_config().set_checkpoint_storage_dir(HERE.as_uri())
    return env


def two():
    env = environment(1)
    events(env, RECORDS, uid="a").blocking().sink_to(FolderSink(HERE / "b")).uid("b_sink")
    return env


ready = build()
number = 3
'''


class InProcess(runtime_job.JobAttempt):
    """A job attempt that runs its Spark jobs in the harness."""

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        return run_rows(job)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the file of a program into a new current directory."""
    monkeypatch.setattr(runtime_job, "JobAttempt", InProcess)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    name = f"shop_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    return name


@pytest.fixture
def job(tmp_path: Path, program: str) -> Path:
    """Creates the job of the program, with two kept checkpoints, on which no run is active."""
    env = load_program(f"{program}:ready")
    assert isinstance(env, StreamExecutionEnvironment)
    config = {"checkpointing": CoordinatorConfig(num_retained=2)}
    with HarnessAttempt(env.get_job_graph(), tmp_path, config=config) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    return tmp_path / "job"


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def printed(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*args: object) -> str:
    result = run(*args)
    assert result.exit_code in (1, 2), result.output
    return result.output


def store(job: Path) -> CompletedCheckpointStore:
    return CompletedCheckpointStore(LocalObjectStore(job))


def fired(folder: Path) -> int:
    """Returns the number of published windows."""
    return len(FolderSink(folder).rows())


# --- plan -------------------------------------------------------------------------------------------------------------


def test_a_plan_of_the_same_program(job: Path, program: str) -> None:
    before = {path: path.read_bytes() for path in job.rglob("*") if path.is_file()}
    said = printed("savepoint", "plan", job, "--program", f"{program}:build")
    assert "unchanged" in said and "kept" in said
    assert "changed:" not in said
    assert {path: path.read_bytes() for path in job.rglob("*") if path.is_file()} == before


def test_a_plan_does_not_warn_of_what_dagster_would_not_follow(job: Path, program: str) -> None:
    """The program may be a script, which says where its checkpoints are."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoEffectWarning)
        assert "unchanged" in printed("savepoint", "plan", job, "--program", f"{program}:script")


def test_a_function_that_needs_arguments_builds_no_program(job: Path, program: str) -> None:
    said = error_of("savepoint", "plan", job, "--program", f"{program}:stream")
    assert f"program '{program}:stream' needs arguments (env): name a function that builds it without any" in said


def test_a_plan_fails_where_the_restore_would(job: Path, program: str) -> None:
    arguments = ("savepoint", "plan", job / "chk-1", "--program", f"{program}:renamed", "--json")
    result = run(*arguments)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    state = {each["uid"]: (each["operator"], each["state"]) for each in found["operators"]}
    assert state["windows"] == ("removed", "refused")
    assert state["others"] == ("added", "starts empty")
    assert "has state for operator 'windows'" in found["problem"]
    assert run(*arguments, "--allow-non-restored-uid", "other").exit_code == 1
    allowed = json.loads(printed(*arguments, "--allow-non-restored-uid", "windows"))
    assert allowed["problem"] is None
    assert {each["uid"]: each["state"] for each in allowed["operators"]}["windows"] == "dropped"


def test_a_plan_says_what_parallelism_would_be_used(job: Path, program: str) -> None:
    said = printed("savepoint", "plan", job, "--program", f"{program}:build", "--parallelism", "3")
    assert "parallelism 3, set by this run" in said
    assert "above its max parallelism" in error_of(
        "savepoint", "plan", job, "--program", f"{program}:build", "--parallelism", "300"
    )


def test_restore_leaves_only_the_state_of_named_operators_behind(job: Path, program: str) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    arguments = ("savepoint", "restore", savepoint, job, "--program", f"{program}:renamed")
    assert "has state for operator 'windows'" in error_of(*arguments, "--allow-non-restored-uid", "sink")
    assert run(*arguments, "--allow-non-restored-uid", "windows").exit_code == 0


# --- stop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_a_drained_stop(job: Path, program: str, form: str) -> None:
    result = run("savepoint", "stop", job, "--drain", "--program", f"{program}:build", "--type", form)
    assert result.exit_code == 0, result.output
    savepoint = Path(unquote(result.stdout.strip().removeprefix("file://")))
    assert savepoint.name.endswith("-native") is (form == "native")
    assert "checkpoint 3" in result.stderr
    assert fired(job.parent / "sink") == 4
    assert store(job).retained() == (1, 2, 3)
    leader = store(job).leader()
    assert leader is not None
    assert (leader.expires_at, leader.committed) == (0, 3)
    assert "savepoint stop by" in leader.owner
    described = json.loads(printed("savepoint", "describe", savepoint, "--json"))
    assert described["end_of_input"] is True


def test_a_stop_with_the_program_commits(job: Path, program: str) -> None:
    """It commits what a dead attempt has prepared. Without the program, the command would refuse."""
    env = load_program(f"{program}:build")
    assert not isinstance(env, StreamExecutionEnvironment)

    class Dies(HarnessAttempt):
        def _commit(self, metadata: CheckpointMetadata) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Dies(env().get_job_graph(), job.parent) as attempt:
        attempt.run_epoch()
    assert "may still have something to commit" in error_of("savepoint", "stop", job)
    result = run("savepoint", "stop", job, "--program", f"{program}:build", "--target", job.parent / "elsewhere")
    assert result.exit_code == 0, result.output
    assert (job.parent / "elsewhere") in Path(result.stdout.strip().removeprefix("file://")).parents
    assert store(job).latest().stopped
    assert fired(job.parent / "sink") == 0


def test_draining_needs_the_program(job: Path) -> None:
    assert "--program MODULE:NAME" in error_of("savepoint", "stop", job, "--drain")
    assert not store(job).latest().stopped


# --- restore ----------------------------------------------------------------------------------------------------------


def test_restore_at_another_parallelism(job: Path, program: str) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    options = ["--program", f"{program}.py:build", "--parallelism", 3]
    assert "now its checkpoint 3" in printed("savepoint", "restore", savepoint, job, *options)
    latest = store(job).latest()
    assert {operator.parallelism for operator in latest.operators} == {3}
    assert store(job).retained() == (1, 2, 3)


def test_restore_into_a_new_job_looks_whether_the_state_fits(job: Path, program: str) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    other = job.parent / "other"
    restore = ["savepoint", "restore", savepoint, other, "--program", f"{program}:renamed"]
    assert "windows" in error_of(*restore)
    assert store(other).latest() is None
    assert "checkpoint 3" in printed(*restore, "--allow-non-restored-state")
    assert [operator.uid for operator in store(other).latest().operators] == ["events", "others", "sink"]
    assert (job / savepoint.rpartition("/")[2]).exists()


def test_claim(job: Path, program: str) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    options = ["--program", f"{program}:build", "--claim-mode", "claim"]
    printed("savepoint", "restore", savepoint, job.parent / "other", *options)
    assert not list((job / savepoint.rpartition("/")[2]).rglob("_metadata"))


@pytest.mark.parametrize(
    "option", [["--parallelism", "3"], ["--allow-non-restored-state"], ["--claim-mode", "no_claim"]]
)
def test_what_needs_the_program(job: Path, option: list[str]) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    assert "need --program" in error_of("savepoint", "restore", savepoint, job, *option)
    assert store(job).retained() == (1, 2)


def test_the_programs_sinks_say_what_they_have_committed(
    job: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Committers, "last_committed", lambda committers: 7 if committers.uids == ("sink",) else None)
    (job / "HEAD").unlink()
    recover = ["checkpoints", "recover", job, "--program", f"{program}:build"]
    assert "newest intact checkpoint" in (told := error_of(*recover))
    assert "committed checkpoint 7" in told
    assert "continues from checkpoint 2" in printed(*recover, "--force")


# --- which program, and which job of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"), [("stop", "no run took the request"), ("restore", "'run 2' may still be running")]
)
def test_nothing_is_changed_beside_a_run(
    job: Path, program: str, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.cli.savepoint.DEFAULT_TIMEOUT", timedelta(0))  # nobody answers
    savepoint = printed("savepoint", "trigger", job).strip()
    store(job).begin_attempt("run 2", time.time_ns() // 1_000_000)
    arguments = [savepoint, job] if command == "restore" else [job]
    assert message in error_of("savepoint", command, *arguments, "--program", f"{program}:build")
    assert store(job).leader().owner == "run 2"


def test_a_program_of_several_regions_is_one_job(job: Path, program: str) -> None:
    printed("savepoint", "stop", job.parent / "two", "--drain", "--program", f"{program}:two")
    latest = store(job.parent / "two").latest()
    assert [operator.uid for operator in latest.operators] == ["a", "a.exchange", "a.exchange.b_sink", "b_sink"]
    assert latest.end_of_input


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{program}", "write 'package.module:function'"),
        ("{program}:number", "neither a program nor a function"),
        ("{program}:missing", "has no 'missing': name the function that builds the program"),
        ("no_such_module:build", "cannot be imported"),
        ("no_such_file.py:build", "cannot be imported"),
    ],
)
def test_there_is_no_such_program(job: Path, program: str, name: str, message: str) -> None:
    assert message in error_of("savepoint", "stop", job, "--program", name.format(program=program))
    assert store(job).retained() == (1, 2)


def test_a_program_without_uids_is_refused(job: Path, program: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error is enough
        assert "need a uid" in (message := error_of("savepoint", "stop", job, "--program", f"{program}:bare"))
    assert "bare (" in message
    assert store(job).leader().token == 1


def test_the_program_runs_on_the_server_that_is_named(job: Path, program: str) -> None:
    spark = SparkResource(mode="remote", remote="sc://host:15002")
    attempt = program_attempt(
        load_program(f"{program}:build"), StorageLocation(str(job)), spark=spark, owner="test", on_progress=print
    )
    assert attempt.config.spark == spark.settings()
