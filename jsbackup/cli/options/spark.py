"""Common parts of commands on Spark: options, and a backup opened with a session.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, parse_duration, s3_settings
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.session.session import SparkSettings
    from jsbackup.pipeline.session.spark_work import SparkWork

__all__ = [
    "SPREAD_OPTIONS",
    "SparkUse",
    "Where",
    "on_spark",
    "on_spark_if_asked",
    "on_spark_if_large",
    "place_given",
    "require_spark",
    "settings_of",
    "spread_by_spark",
]

F = TypeVar("F", bound=Callable[..., Any])


# As `WAIT_SECONDS` of `pipeline/session/waiting.py`.
_WAIT = "10m"


class SparkUse(StrEnum):
    """Whether a command that can do without Spark uses it."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    REQUIRED = "required"  # the command cannot do without it, and has no option --spark


@dataclass(frozen=True, slots=True)
class Where:
    """The values of `--spark-master`, `--spark-remote` (None if not given), `--spark-conf`, `--spark` (`auto` for a
    command without it), and `--spark-wait`. `work` gets what executors have done, None if that is not known.
    """

    master: str | None
    conf: tuple[str, ...]
    remote: str | None = None
    use: SparkUse = SparkUse.AUTO
    wait: str = _WAIT
    work: list[SparkWork | None] = field(default_factory=list, compare=False)

    @property
    def given(self) -> bool:
        return self.master is not None or self.remote is not None or bool(self.conf)

    @property
    def spreads(self) -> bool:
        """Whether a command that only uses Spark on demand may use it."""
        return self.given or self.use is SparkUse.ALWAYS

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines may do the work."""
        return self.remote is not None or (self.master is not None and not self.master.startswith("local"))

    @property
    def work_json(self) -> JsonObject:
        """The member `work` of documents about a job on Spark; none if no job was run there."""
        if not self.work:
            return {}
        work = self.work[-1]
        return {"work": None if work is None else work.json}

    @property
    def spark_json(self) -> JsonObject:
        """The member `spark` of documents of commands whose options decide alone; none if no job was run there."""
        asked = f"--spark {self.use}" if self.use is SparkUse.ALWAYS else "this command runs there"
        why = "an option of Spark is given" if self.given else asked
        return {"spark": {"used": True, "why": why, **self.work_json}} if self.work else {}


def _spark_options(says: str) -> Callable[[F], F]:
    def options(command: F) -> F:
        @click.option("--spark-master", metavar="URL", help=says)
        @click.option(
            "--spark-remote", metavar="URL", help="A Spark Connect server to run it instead: sc://host:15002."
        )
        @click.option(
            "--spark-conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of Spark, such as spark.driver.memory=8g.",
        )
        @click.option(
            "--spark-wait",
            metavar="DURATION",
            default=_WAIT,
            show_default=True,
            help="How long to wait for the first executor of a cluster, and for another one if all are lost.",
        )
        @wraps(command)
        def run(
            *arguments: Any,
            spark_master: str | None,
            spark_remote: str | None,
            spark_conf: tuple[str, ...],
            spark_wait: str,
            spark: str = SparkUse.AUTO,
            **others: Any,
        ) -> Any:
            where = Where(spark_master, spark_conf, spark_remote, SparkUse(spark), spark_wait)
            return command(*arguments, where=where, **others)

        return cast(F, run)

    return options


_MASTERS = "local[N], spark://host:7077, yarn or k8s://…"

on_spark = _spark_options(f"Where Spark runs: {_MASTERS}; by default all cores of this machine.")
"""Add `--spark-master`, `--spark-conf` and others, passed as `where`."""


def _use_option(auto: str) -> Callable[[F], F]:
    return click.option(
        "--spark",
        type=click.Choice([use.value for use in SparkUse if use is not SparkUse.REQUIRED]),
        default=SparkUse.AUTO.value,
        show_default=True,
        help=f"Whether to use Spark; auto: {auto}.",
    )


_USE_IF_LARGE = _use_option(
    "if another option of Spark is given, or for 16 GiB of messages and more (2 GiB for JSON lines)"
)
_USE_IF_GIVEN = _use_option(
    "if another option of Spark is given and there are 2 GiB of messages or more, as less is faster without; with "
    "--spark-remote, whatever the size"
)


def on_spark_if_large(command: F) -> F:
    """Add the options of `on_spark`, and `--spark`, which decides."""
    return _USE_IF_LARGE(on_spark(command))


def on_spark_if_asked(command: F) -> F:
    """Add `--spark URL` and `--spark-conf`, passed as `where`: None without `--spark`."""

    @click.option("--spark", metavar="URL", help=f"Run it on Spark: local, {_MASTERS}, or sc://host:15002.")
    @click.option(
        "--spark-conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark, such as spark.driver.memory=8g."
    )
    @wraps(command)
    def run(*arguments: Any, spark: str | None, spark_conf: tuple[str, ...], **others: Any) -> Any:
        if spark is None and spark_conf:
            raise UsageError("--spark-conf makes sense with --spark only")
        where = None if spark is None else _asked(spark, spark_conf)
        return command(*arguments, where=where, **others)

    return cast(F, run)


def _asked(url: str, conf: tuple[str, ...]) -> Where:
    if url.startswith("sc://"):
        return Where(None, conf, url, SparkUse.REQUIRED)
    if "://" not in url and url != "yarn" and not url.startswith("local"):
        raise UsageError(f"--spark: not a place of Spark: {url[:80]!r}", hint=f"Give local, {_MASTERS}, or sc://…")
    return Where(None if url == "local" else url, conf, None, SparkUse.REQUIRED)


SPREAD_OPTIONS = ("spark", "spark_master", "spark_remote", "spark_conf", "spark_wait")
"""The names of the parameters that `spread_by_spark` adds."""


def spread_by_spark(command: F) -> F:
    """Add the same options to a command that only uses Spark if they are given."""
    return _USE_IF_GIVEN(_spark_options(f"Spread the streams over executors of Spark: {_MASTERS}.")(command))


def settings_of(where: Where) -> SparkSettings:
    """Return the settings. Raises UsageError for invalid ones, UnsupportedError if Spark is not installed."""
    if where.master is not None and where.remote is not None:
        raise UsageError("--spark-master and --spark-remote are two places", hint="Give one of them.")
    pairs = [text.partition("=") for text in where.conf]
    for name, equals, _ in pairs:
        if not name.startswith("spark.") or not equals:
            raise UsageError(f"not a setting of Spark: {name[:80]!r}", hint="Write it as spark.driver.memory=8g.")
    wait_seconds = parse_duration(where.wait)
    require_spark()
    from jsbackup.cli.output.log import silence_spark
    from jsbackup.pipeline.session.session import DEFAULT_MASTER, SparkSettings

    silence_spark()
    conf = {name: value for name, _, value in pairs}
    return SparkSettings(
        where.master or DEFAULT_MASTER, conf, where.remote, wait_seconds=wait_seconds, report=where.work.append
    )


def require_spark() -> None:
    """Raise UnsupportedError if Spark is not installed."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(
            "this runs on Spark, which is not installed", hint="Install it with `pip install 'jsbackup[spark]'`."
        )


def place_given(shared: Shared) -> RepositoryRef:
    """Return the repository of the options, for executors. Raises UsageError if there is none."""
    from jsbackup.pipeline.session.repository_ref import place_of

    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return place_of(shared.repo, s3_settings(shared.s3, environment()), shared.keys)
