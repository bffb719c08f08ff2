"""What spark-submit is given as the application: the words after it are those of `brokergroup sla`.

spark-submit takes a Python file and no console script, so this file becomes the script: the process stays, and with it the
environment by which the session finds spark-submit's JVM (`session.py`), and its exit code is the verdict.
"""

import os
import sys
from pathlib import Path


def main(words: list[str]) -> None:
    program = Path(sys.executable).with_name("brokergroup")
    os.execv(program, [str(program), "sla", *words])  # noqa: S606 - our own program, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
