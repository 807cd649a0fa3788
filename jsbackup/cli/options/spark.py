"""The options `--spark URL` and `--spark-conf`: with them a job on stored data runs on Spark, without them here.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, s3_settings
from jsbackup.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.session.session import SparkSettings

__all__ = ["SPARK_OPTIONS", "Where", "place_given", "settings_of", "where_asked"]

SPARK_OPTIONS = [
    click.Option(["--spark"], metavar="URL", help="Run it on Spark: local, spark://host:7077, …"),
    click.Option(["--spark-conf"], multiple=True, metavar="KEY=VALUE", help="A setting: spark.driver.memory=8g."),
]


@dataclass(frozen=True, slots=True)
class Where:
    """The values of `--spark` and `--spark-conf`."""

    url: str
    conf: tuple[str, ...]

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines may do the work."""
        return not self.url.startswith("local")


def where_asked(spark: str | None, spark_conf: tuple[str, ...]) -> Where | None:
    """Return where to run; None without `--spark`. Raises UsageError as `settings_of`, before anything is opened."""
    if spark is None:
        if spark_conf:
            raise UsageError("--spark-conf makes sense with --spark only", hint="Leave it out, or add --spark local.")
        return None
    where = Where(spark, spark_conf)
    settings_of(where)
    return where


def settings_of(where: Where) -> SparkSettings:
    """Return the settings. Raises UsageError for invalid ones, UnsupportedError if Spark is not installed."""
    pairs = [text.partition("=") for text in where.conf]
    for name, equals, _ in pairs:
        if not name.startswith("spark.") or not equals:
            raise UsageError(f"not a setting of Spark: {name[:80]!r}", hint="Write it as spark.driver.memory=8g.")
    if find_spec("pyspark") is None:
        raise UnsupportedError(
            "this runs on Spark, which is not installed", hint="Install it with `pip install 'jsbackup[spark]'`."
        )
    from jsbackup.cli.output.progress import silence_spark
    from jsbackup.pipeline.session.session import SparkSettings, check_url

    check_url(where.url)
    silence_spark()
    return SparkSettings(where.url, {name: value for name, _, value in pairs})


def place_given(shared: Shared) -> RepositoryRef:
    """Return the repository of the options, for executors. Raises UsageError if there is none."""
    from jsbackup.pipeline.session.repository_ref import place_of

    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    settings = s3_settings(shared.s3, environment(shared.variables))
    return place_of(shared.repo, settings, shared.keys, shared.variables)
