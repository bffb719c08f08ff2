"""Spark's classes, read and checked once: an AppCDS archive makes the JVM's start several times cheaper.

The archive fits one JDK build and one set of jars, so its name is made of both. A JVM that is given an archive which does not
fit goes on without it; but it dies of one that ends too early, so a file beside it says how long it is, and of whose jars. Made
by `python -m sla_reports.class_archive` (at set-up, with `--optional`, and in the image), found by `start_session`.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyspark

ARCHIVE_VARIABLE: Final = "BROKERGROUP_SPARK_ARCHIVE"
CACHE_VARIABLE: Final = "BROKERGROUP_CACHE"
_TRAINING_SECONDS: Final = 600


class NoJavaError(Exception):
    """There is no Java to run Spark on; the message says how to get it."""


def java_program() -> Path:
    """Return the Java that Spark will run on. Raises NoJavaError."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise NoJavaError(
            "java: not found (JAVA_HOME, PATH); SLA reports run on Spark, which needs Java 17 or newer:"
            " on Debian `apt-get install openjdk-17-jre-headless`"
        )
    return Path(found)


def archive_path() -> Path:
    """Return the path of the archive for this JDK and this Spark, also if there is no file yet. Raises NoJavaError."""
    named = os.environ.get(ARCHIVE_VARIABLE)
    if named:
        return Path(named)
    command = [str(java_program()), "-version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - our own words
    key = hashlib.sha256(f"{version.stderr}\n{_jars()}".encode()).hexdigest()[:12]
    cache = os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "brokergroup-operator"
    return Path(cache) / f"spark-{pyspark.__version__}-{key}.jsa"


def _jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def archive_options() -> str:
    """Return the options with which a JVM uses its archive; none if there is no archive or no version. Raises NoJavaError."""
    try:
        return jvm_options(archive_path())
    except (subprocess.SubprocessError, OSError):
        # A Java that prints no version has no archive: Spark reports what else is wrong with it.
        return ""


def jvm_options(archive: Path) -> str:
    """Return the options with which a JVM uses the archive; an empty text if the archive is missing or not whole."""
    if not _is_whole(archive):
        return ""
    # An archive that does not fit is no reason to say anything: the JVM goes on without it.
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def make_archive(*, again: bool = False) -> Path:
    """Run a small job that loads what reports load, and keep its classes. Does nothing where there is an archive already."""
    archive = archive_path()
    if _is_whole(archive) and not again:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".spark-archive-") as folder:
        made = Path(folder) / "spark.jsa"
        environment = {**os.environ, ARCHIVE_VARIABLE: str(made)}
        command = [sys.executable, "-m", "sla_reports.class_archive", "--train", folder]
        subprocess.run(  # noqa: S603 - our own words
            command, env=environment, check=True, timeout=_TRAINING_SECONDS, stdout=subprocess.DEVNULL
        )
        size = Path(folder) / "size"
        size.write_text(f"{made.stat().st_size}\n{_jars()}\n")
        made.rename(archive)
        size.rename(_size_file(archive))
    _forget_the_homeless(archive.parent)
    return archive


def _forget_the_homeless(folder: Path) -> None:
    """Delete archives whose jars are gone with their environment: each is some 190 MB."""
    for size_file in folder.glob("spark-*.jsa.size"):
        _, _, jars = size_file.read_text().strip().partition("\n")
        if jars and not Path(jars).exists():
            size_file.with_suffix("").unlink(missing_ok=True)
            size_file.unlink(missing_ok=True)


def _size_file(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.size")


def _is_whole(archive: Path) -> bool:
    try:
        return archive.stat().st_size == int(_size_file(archive).read_text().partition("\n")[0])
    except (OSError, ValueError):
        return False


def _train(folder: Path) -> None:
    """Run the job: readers, both ways to reduce, Parquet both ways, as a report does them."""
    from sla_reports.session import start_session  # noqa: PLC0415 - session.py imports this module

    option = f"-XX:ArchiveClassesAtExit={folder / 'spark.jsa'}"
    spark = start_session("archive", short_jobs=True, java_options=option)
    text = "".join(f'up{{a="{number % 5}"}} 1 {1_790_000_000 + number * 15}\n' for number in range(2000))
    (folder / "training.om").write_text(f"{text}# EOF\n")
    from sla_reports.readers import lake  # noqa: PLC0415
    from sla_reports.readers.text import read_openmetrics  # noqa: PLC0415
    from sla_reports.reduction.jobs import infer_intervals, reduce_lake, reduce_samples  # noqa: PLC0415

    lake.write(spark, read_openmetrics(spark, [folder / "training.om"]).frame, folder / "lake")
    reduce_samples(lake.read(spark, folder / "lake").frame)
    reduce_lake(spark, folder / "lake", infer_intervals(spark, folder / "lake"))
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way to the JVM's process
    spark.stop()
    gateway.shutdown()
    # The JVM ends when its input does, and writes the archive then: it is waited for.
    gateway.proc.stdin.close()
    gateway.proc.wait(_TRAINING_SECONDS)


def main(words: list[str]) -> int:
    """Print where the archive is. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="also where there is one")
    parser.add_argument("--optional", action="store_true", help="report, but do not fail, if none can be made")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.train is not None:
        _train(options.train)
        return 0
    try:
        sys.stdout.write(f"{make_archive(again=options.again)}\n")
    except (NoJavaError, subprocess.SubprocessError, OSError) as error:
        sys.stderr.write(f"class archive: none was made, so Spark starts slower: {error}\n")
        return 0 if options.optional else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
