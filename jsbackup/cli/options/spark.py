"""The options `--spark URL` and `--spark-conf`: with them a job on stored data runs on Spark, without them here.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, s3_settings
from jsbackup.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.session.session import SparkSettings

__all__ = ["SPARK_OPTIONS", "Where", "on_spark_if_asked", "place_given", "settings_of"]

F = TypeVar("F", bound=Callable[..., Any])

SPARK_OPTIONS = ("spark", "spark_conf")
"""The names of the parameters that `on_spark_if_asked` adds."""


@dataclass(frozen=True, slots=True)
class Where:
    """The values of `--spark` and `--spark-conf`."""

    url: str
    conf: tuple[str, ...]

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines may do the work."""
        return not self.url.startswith("local")


def on_spark_if_asked(command: F) -> F:
    """Add `--spark` and `--spark-conf`, passed as `where`: None without `--spark`."""

    @click.option(
        "--spark",
        metavar="URL",
        help="Run it on Spark: local, spark://host:7077, …",
    )
    @click.option("--spark-conf", multiple=True, metavar="KEY=VALUE", help="A setting, such as spark.driver.memory=8g.")
    @wraps(command)
    def run(*arguments: Any, spark: str | None, spark_conf: tuple[str, ...], **others: Any) -> Any:
        if spark is None and spark_conf:
            raise UsageError("--spark-conf makes sense with --spark only", hint="Leave it out, or add --spark local.")
        where = None if spark is None else Where(spark, spark_conf)
        if where is not None:
            settings_of(where)  # before anything is opened
        return command(*arguments, where=where, **others)

    return cast(F, run)


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
    from jsbackup.cli.output.log import silence_spark
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
