"""Convert errors of Spark to our errors with their codes.

Errors raised on an executor arrive as text: Java's message around a Python traceback. If it ends with one of our
errors, that is raised again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from jsbackup import errors
from jsbackup.errors import ExecutorsLost, JsBackupError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SPARK_FAILURES", "plain_message", "spark_errors", "unpersist"]

SPARK_FAILURES = (PySparkException, Py4JError, OSError)
"""What calls of Spark raise; the last if its Java has ended."""

_OURS = re.compile(r"^(?:\S+: )*jsbackup\.errors\.(\w+): (.*)$", re.MULTILINE)
_NO_ROOM = (
    "Look at the workers of the cluster. It may have no room: --spark-conf spark.executor.memory=SIZE and "
    "spark.executor.cores=N ask for less."
)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_PYTHON = re.compile(r"^(?:\S+: )*(\w+(?:\.\w+)*(?:Error|Exception): .*)$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ?")
_TAIL = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Convert errors that Spark raises inside to ours; `doing` says what failed, such as `the query`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _translated(doing, error) from error
    except OSError as error:  # the connection to the JVM
        raise JsBackupError(f"{doing} failed: Spark has ended ({error})") from error


def unpersist(frame: DataFrame) -> None:
    """Let go of what was persisted of a frame, if Spark has not ended."""
    with suppress(*SPARK_FAILURES):
        frame.unpersist()


def plain_message(error: PySparkException) -> str:
    """Return the first sentence of Spark's message, in one line."""
    text = _TAIL.sub("", _CONDITION.sub("", str(error).strip()))
    line = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    return line[:400] or type(error).__name__


def _translated(doing: str, error: Exception) -> JsBackupError:
    text = str(error)
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        kind: type[JsBackupError] = getattr(errors, name, JsBackupError)
        translated = kind.__new__(kind)
        # Other attributes of the class are not transferred.
        JsBackupError.__init__(translated, message)
        return translated
    if "cancellation of all jobs" in text:  # by the watch in `session.py`
        return ExecutorsLost(f"{doing} failed: no executor of the cluster was there for too long", hint=_NO_ROOM)
    if isinstance(error, ParseException | AnalysisException):
        return UsageError(f"{doing} cannot be understood: {plain_message(error)}")
    if "PYTHON_VERSION_MISMATCH" in text:
        return UnsupportedError(
            f"{doing} failed: the executors run another Python than this command",
            hint="Give theirs with --spark-conf spark.pyspark.python=PATH; the minor version has to be the same.",
        )
    if missing := _MISSING.search(text):
        return UnsupportedError(
            f"{doing} failed: the executors have no Python package {missing[1]}",
            hint="jsbackup itself is sent to them; what it depends on has to be installed on every node.",
        )
    if python := _PYTHON.findall(text):
        return JsBackupError(f"{doing} failed on an executor: {' '.join(python[-1].split())[:400]}")
    said = plain_message(error) if isinstance(error, PySparkException) else " ".join(text.split())[:400]
    return JsBackupError(f"{doing} failed: {said}")
