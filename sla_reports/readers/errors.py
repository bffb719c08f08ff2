"""What a reader says on a worker, as the error of the one who asked.

Spark wraps an exception of a Python worker into its own, with the worker's whole traceback. A person needs one line: file, line
number, what was expected.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from sla_reports.readers.contract import ExportFormatError

# Of an export, of a server, of an option: whatever a reader says is told by its last line.
_TOLD = re.compile(r"sla_reports\.(?:readers\.\w+|connection)\.\w+Error: (.*?)(?:\n|$)")


def translated(error: PySparkException) -> ExportFormatError | None:
    """The reader's own error inside of Spark's; None where it is another trouble."""
    found = _TOLD.findall(str(error))
    return ExportFormatError(found[-1].strip()) if found else None


@contextmanager
def readable_errors() -> Iterator[None]:
    """Around an action on a reader's frame: a reader's error comes out as ExportFormatError, any other as it is."""
    try:
        yield
    except PySparkException as error:
        own = translated(error)
        if own is None:
            raise
        raise own from error
