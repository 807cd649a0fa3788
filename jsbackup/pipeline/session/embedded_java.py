"""Options for the Java that we start, the only one of an embedded Spark or the driver of a cluster: it should start
fast and does short work. Executors of a cluster get none.

Options of the user's are the only ones, unless they just set properties (`-D`): two collectors are an error, and an
agent changes classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["java_settings", "may_use_archive"]

_OPTIONS = "spark.driver.extraJavaOptions"
_CONF = (_OPTIONS, "spark.driver.defaultJavaOptions")
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_PROPERTIES = re.compile(r"(\s*-D\S+)*\s*")

# These change the class path, for which an archive is made, or add classes that may need what it leaves out.
_PATH_VARIABLES = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PATH_CONF = re.compile(r"spark\.(driver\.extraClassPath|jars(\..*)?|plugins|extraListeners|sql\.extensions)")


def java_settings(conf: Mapping[str, str], environ: Mapping[str, str], *, is_short: bool) -> dict[str, str]:
    """Return the setting of Spark with Java's options, for the user's settings and environment; nothing if those have
    options of their own.
    """
    if not _only_properties(conf, environ):
        return {}
    # The second compiler would take half of the processor's time of a short job. Spark's classes are beyond the size
    # at which Java collects garbage for the first time, as it takes them for many.
    options = ["-XX:+UseSerialGC", "-XX:MetaspaceSize=256m", *(["-XX:TieredStopAtLevel=1"] if is_short else [])]
    return {_OPTIONS: " ".join([*options, *conf.get(_OPTIONS, "").split()])}


def may_use_archive(conf: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return whether Java may have its archive of classes (`class_archive.py`) with these settings and environment."""
    changed = any(map(_PATH_CONF.fullmatch, conf)) or any(environ.get(name) for name in _PATH_VARIABLES)
    return not changed and _only_properties(conf, environ)


def _only_properties(conf: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    given = [conf.get(name, "") for name in _CONF] + [environ.get(name, "") for name in _VARIABLES]
    return all(_PROPERTIES.fullmatch(options) for options in given)
