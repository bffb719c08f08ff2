"""Spark's processes: progress of a running job, the class archive that it starts from, and the image's entry point."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

from sla_reports import class_archive
from sla_reports.class_archive import ARCHIVE_VARIABLE, CACHE_VARIABLE, NoJavaError, archive_options, jvm_options, main
from sla_reports.pod_entrypoint import SPARK_HOME, EntryPointError, application_file, command_of, exit_codes, is_apart
from sla_reports.session import StageNow, Teller, line_of, progress, spark_stages

A_JOB = """
from sla_reports.session import start_session
spark = start_session("archive test", master="local[1]", short_jobs=True)
print(spark.range(10).count())
spark.stop()
"""


@pytest.mark.parametrize(
    ("stage", "seconds", "line"),
    [
        (StageNow(3, "collect", 40, 0, 0), 9.0, "stage 3 (collect): 0 of 40 partitions"),
        (StageNow(3, "collect", 40, 10, 1_234_567), 9.0,
         "stage 3 (collect): 10 of 40 partitions, 1,234,567 rows, about 27 s left"),
        (StageNow(3, "collect", 40, 40, 5), 9.0, "stage 3 (collect): 40 of 40 partitions, 5 rows"),
    ],
)  # fmt: skip
def test_a_line(stage: StageNow, seconds: float, line: str) -> None:
    assert line_of(stage, seconds) == line


def test_only_what_changed_is_told_and_time_counts_from_the_stages_begin() -> None:
    now = iter([100.0, 102.0, 104.0])
    teller = Teller(lambda: next(now))
    first, second = StageNow(1, "count", 4, 0, 0), StageNow(2, "count", 2, 0, 0)
    assert teller.lines([second, first]) == [line_of(first, 0.0), line_of(second, 0.0)]
    assert teller.lines([first]) == []
    assert teller.lines([StageNow(1, "count", 4, 1, 7)]) == [
        "stage 1 (count): 1 of 4 partitions, 7 rows, about 12 s left"
    ]


class _Stages:
    """One more stage at each query."""

    def __init__(self) -> None:
        self.asked = 0
        self.twice = threading.Event()

    def stages(self) -> list[StageNow]:
        self.asked += 1
        if self.asked >= 2:
            self.twice.set()
        return [StageNow(self.asked, "count", 1, 0, 0)]


def test_it_tells_until_the_block_ends_also_by_an_error() -> None:
    stages = _Stages()
    lines: list[str] = []

    def job() -> None:
        with progress(stages.stages, lines.append, every_seconds=0.001):
            assert stages.twice.wait(60)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        job()
    told = len(lines)
    assert told == stages.asked
    assert not any(thread.name == "sla-progress" for thread in threading.enumerate())


def test_a_job_that_is_over_at_once_is_not_told_of() -> None:
    stages = _Stages()
    lines: list[str] = []
    with progress(stages.stages, lines.append, every_seconds=3600):
        pass
    assert (lines, stages.asked) == ([], 0)


def test_a_spark_that_is_gone_is_no_error() -> None:
    session = mock.Mock()
    session.sparkContext.statusTracker().getActiveStageIds.side_effect = ConnectionRefusedError("gone")
    assert spark_stages(session) == []


def _job(archive: Path, classes: Path) -> subprocess.CompletedProcess[str]:
    """Run a session and a job in a separate process; the JVM logs the source of each class."""
    environment = {**os.environ, ARCHIVE_VARIABLE: str(archive), "JDK_JAVA_OPTIONS": f"-Xlog:class+load:file={classes}"}
    return subprocess.run(
        [sys.executable, "-c", A_JOB], env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def _from_archive(classes: Path) -> int:
    """Return the classes from a dynamic archive. spark-submit's launcher reads JDK_JAVA_OPTIONS too: the last JVM wrote the log."""
    return sum("shared objects file (top)" in line for line in classes.read_text(errors="replace").splitlines())


# By day: a lane makes the archive, and every report uses it.
@pytest.mark.nightly
@pytest.mark.real("java")
@pytest.mark.timeout(900)
def test_spark_starts_from_the_archive_and_without_one_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "made" / "spark.jsa"
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(archive))
    made = subprocess.run(
        [sys.executable, "-m", "sla_reports.class_archive"], capture_output=True, text=True, timeout=600, check=False
    )
    assert (made.returncode, made.stdout) == (0, f"{archive}\n"), made.stderr
    assert {path.name for path in archive.parent.iterdir()} == {"spark.jsa", "spark.jsa.size"}
    # In the image root creates it and another user reads it.
    assert archive.stat().st_mode & 0o004

    done = _job(archive, tmp_path / "classes.log")
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr
    assert _from_archive(tmp_path / "classes.log") > 5_000

    # Another JDK's archive is invalid for this one, like this file: the JVM silently continues.
    other = _archive_of(tmp_path / "other.jsa", "none of ours" * 1000)
    assert jvm_options(other) != ""
    done = _job(other, tmp_path / "other.log")
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr
    assert "other.jsa" not in done.stderr
    assert _from_archive(tmp_path / "other.log") == 0


def _archive_of(path: Path, text: str) -> Path:
    path.write_text(text)
    _size_of(path).write_text(str(len(text)))
    return path


def test_an_archive_that_ends_too_early_is_not_used_for_the_jvm_would_die_of_it(tmp_path: Path) -> None:
    archive = _archive_of(tmp_path / "spark.jsa", "as long as it was made")
    assert str(archive) in jvm_options(archive)
    archive.write_text("as long as it")
    assert jvm_options(archive) == ""


def test_an_archive_whose_jars_are_gone_goes_too(tmp_path: Path) -> None:
    kept, gone, unknown = (_archive_of(tmp_path / f"spark-{one}.jsa", "archive") for one in ("kept", "gone", "unknown"))
    _size_of(kept).write_text(f"7\n{tmp_path}\n")
    _size_of(gone).write_text(f"7\n{tmp_path / 'no-such-folder'}\n")
    class_archive._forget_the_homeless(tmp_path)
    assert {path.name for path in tmp_path.glob("*.jsa")} == {kept.name, unknown.name}
    assert not _size_of(gone).exists()
    assert str(kept) in jvm_options(kept)


def _size_of(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.size")


def test_no_archive_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(tmp_path / "none.jsa"))
    assert archive_options() == ""


def _java(folder: Path, script: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_java_that_does_not_tell_its_version_has_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _java(tmp_path, "exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    assert archive_options() == ""


def test_each_jdk_has_an_archive_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    found = set()
    for version in ("17.0.15", "17.0.16"):
        home = tmp_path / version
        home.mkdir()
        _java(home, f"echo openjdk version {version} >&2")
        monkeypatch.setenv("JAVA_HOME", str(home))
        found.add(class_archive.archive_path())
    assert len(found) == 2
    assert {path.parent for path in found} == {tmp_path}


@pytest.mark.parametrize(("words", "code"), [([], 1), (["--optional"], 0)])
def test_set_up_goes_on_without_java_and_says_what_is_missing(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    assert main(words) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "java: not found" in told.err
    assert "apt-get install openjdk-17-jre-headless" in told.err
    with pytest.raises(NoJavaError):
        archive_options()


EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2", "SPARK_EXECUTOR_MEMORY": "1g", "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3", "SPARK_EXECUTOR_POD_NAME": "report-exec-3", "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_JAVA_OPT_0": "-Dfirst", "SPARK_JAVA_OPT_10": "-Dlast",
    "SPARK_JAVA_OPT_2": "-Dsecond=with a space",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
# As Spark 4.3 writes it.
ENDED = """26/11/22 12:00:00 INFO LoggingPodStatusWatcherImpl: State changed, new state:
\t exit code: 7
26/11/22 12:00:01 INFO LoggingPodStatusWatcherImpl: Container final statuses:

\t container name: report
\t container state: terminated
\t exit code: {}
\t termination reason: Error
"""


@pytest.mark.real("java")
def test_an_executor_is_told_all_that_spark_said() -> None:
    program, *rest = command_of(["executor"], EXECUTOR)
    assert Path(program).name == "java"
    assert rest[:5] == ["-Dfirst", "-Dsecond=with a space", "-Dlast", "-Xms1g", "-Xmx1g"]
    conf, first, *others = rest[rest.index("-cp") + 1].split(":")
    assert (conf, others) == (f"{SPARK_HOME}/conf", [f"{SPARK_HOME}/jars/*", "/opt/spark/conf"])
    assert Path(first).is_file()
    said = rest[rest.index("-cp") + 3 :]
    options = dict(zip(said[::2], said[1::2], strict=True))
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3", "--cores": "2", "--app-id": "spark-1", "--hostname": "10.0.0.3",
        "--resourceProfileId": "0", "--podName": "report-exec-3",
    }  # fmt: skip


@pytest.mark.real("java")
def test_an_executors_class_path_begins_as_spark_submits() -> None:
    """spark-submit creates the class archive, which fits only the same beginning of the class path."""
    command = [*command_of(["submit"], {}), "--version"]
    environment = {**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=True)
    [submits] = set(re.findall(r"^Spark Command: .* -cp (\S+) ", done.stderr, re.MULTILINE))
    executor = command_of(["executor"], EXECUTOR)
    assert executor[executor.index("-cp") + 1].startswith(submits)


def test_a_driver_is_spark_submit_in_its_own_pod() -> None:
    words = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py", "report"]
    command = command_of(words, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"})
    assert Path(command[0]).is_file()
    assert command[1:5] == ["--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.1"]
    assert command[5:] == words[1:]


def test_our_word_submits_the_application_of_the_image() -> None:
    command = command_of(["submit", "--master", "k8s://https://kubernetes", "{application}", "report"], {})
    assert command[0].endswith("/bin/spark-submit")
    assert command[1:] == ["--master", "k8s://https://kubernetes", application_file(), "report"]
    assert Path(application_file().removeprefix("local://")).is_file()


@pytest.mark.parametrize("words", [["sla", "report"], ["--help"], []])
def test_all_else_is_a_command_of_ours(words: list[str]) -> None:
    assert command_of(words, {}) == ["brokergroup", *words]


@pytest.mark.parametrize(
    ("words", "variable"), [(["driver"], "SPARK_DRIVER_BIND_ADDRESS"), (["executor"], "SPARK_EXECUTOR_MEMORY")]
)
def test_a_pod_that_spark_told_nothing_says_what_is_missing(words: list[str], variable: str) -> None:
    with pytest.raises(EntryPointError, match=f"{variable}: missing"):
        command_of(words, {})


def _wait_for(program: str) -> subprocess.Popen[str]:
    """Run the wrapper around a shell in place of spark-submit."""
    wait = f"submission.wait_for_driver(['sh', '-c', {program!r}], dict(os.environ))"
    words = f"import os, sys; from sla_reports import pod_entrypoint as submission; sys.exit({wait})"
    return subprocess.Popen(
        [sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("says", "ends", "code"),
    [
        (ENDED.format(0), 0, 0),
        (ENDED.format(2), 0, 2),
        (ENDED.format(137), 0, 137),
        # The submission itself failed.
        ("", 1, 1),
        # The driver continues without a waiting process: there is no report yet.
        ("26/11/22 12:00:00 INFO Client: Deployed Spark application\n", 0, 1),
    ],
)
def test_it_ends_as_the_driver_did(says: str, ends: int, code: int) -> None:
    process = _wait_for(f"printf %s {shlex.quote(says)} >&2; exit {ends}")
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.startswith(says)
    assert ("did not report how the driver ended" in said) is (code == 1 and ends == 0)


def test_a_pod_that_is_told_to_go_tells_spark_submit() -> None:
    process = _wait_for("trap 'echo went >&2; exit 143' TERM; echo here >&2; while :; do sleep 0.05; done")
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "went\n")


def test_only_the_final_states_count() -> None:
    assert exit_codes(ENDED.format(3).splitlines()) == [3]
    assert exit_codes(["\t exit code: 3\n"]) == []


@pytest.mark.parametrize(
    ("words", "apart"),
    [(["spark-submit", "--deploy-mode=cluster"], True), (["spark-submit", "--deploy-mode", "cluster"], True),
     (["spark-submit", "--deploy-mode", "client", "cluster"], False), (["spark-submit"], False)],
)  # fmt: skip
def test_a_driver_here_becomes_the_process_itself(words: list[str], apart: bool) -> None:
    assert is_apart(words) is apart
