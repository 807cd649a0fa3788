"""Java's options of an embedded Spark: the user's come first, and a cluster gets none."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.pipeline.session import session
from jsbackup.pipeline.session.embedded_java import java_settings, may_use_archive
from jsbackup.pipeline.session.session import SparkSettings, open_session

OPTIONS = "spark.driver.extraJavaOptions"


def test_a_short_job_compiles_less() -> None:
    options = "-XX:+UseSerialGC -XX:MetaspaceSize=256m"
    assert java_settings({}, {}, is_short=False) == {OPTIONS: options}
    assert java_settings({}, {}, is_short=True) == {OPTIONS: f"{options} -XX:TieredStopAtLevel=1"}
    assert may_use_archive({}, {"PATH": "/bin"})


def test_properties_of_the_user_are_added() -> None:
    found = java_settings({OPTIONS: "-Da=b  -Dc"}, {"JAVA_TOOL_OPTIONS": "-Dx=y "}, is_short=False)
    assert found == {OPTIONS: "-XX:+UseSerialGC -XX:MetaspaceSize=256m -Da=b -Dc"}
    assert may_use_archive({OPTIONS: "-Da=b"}, {"JAVA_TOOL_OPTIONS": "-Dx=y"})


@pytest.mark.parametrize(
    ("conf", "environ"),
    [
        ({OPTIONS: "-XX:+UseG1GC"}, {}),
        ({OPTIONS: "-Da=b -Xmn1g"}, {}),
        ({"spark.driver.defaultJavaOptions": "-javaagent:x.jar"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}),
        ({}, {"JDK_JAVA_OPTIONS": "@options"}),
        ({}, {"SPARK_SUBMIT_OPTS": "-Xint"}),
    ],
)
def test_other_options_of_the_user_are_the_only_ones(conf: dict[str, str], environ: dict[str, str]) -> None:
    assert java_settings(conf, environ, is_short=True) == {}
    assert not may_use_archive(conf, environ)


def test_another_class_path_has_no_archive() -> None:
    for name in ("SPARK_HOME", "HADOOP_CONF_DIR"):
        assert not may_use_archive({}, {name: "/x"}) and may_use_archive({}, {name: ""})
    for name in ("spark.driver.extraClassPath", "spark.jars", "spark.jars.packages", "spark.sql.extensions"):
        assert not may_use_archive({name: "x"}, {})
    assert may_use_archive({"spark.jarsx": "1", "spark.driver.memory": "4g"}, {})
    assert java_settings({"spark.driver.extraClassPath": "x.jar"}, {"SPARK_HOME": "/x"}, is_short=True)


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:1"])
def test_only_an_embedded_spark_gets_them(master: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is given to Spark, which does not start here."""
    given: dict[str, str] = {}

    def launch(_: str, conf: dict[str, str], home: Path, _wait_seconds: float) -> None:
        given.update(conf, script=(home / "bin" / "java").read_text())
        raise OSError("it does not start")

    monkeypatch.setattr(session, "_launch", launch)
    monkeypatch.setattr(session, "_reach", lambda _: None)
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with (
        pytest.raises(Exception, match="Spark does not start: it does not start"),
        open_session(SparkSettings(master, {"spark.executor.memory": "1g"}, is_short=True)),
    ):
        pass
    embedded = master.startswith("local")
    assert ("-XX:TieredStopAtLevel=1" in given.get(OPTIONS, "")) == embedded
    assert (str(tmp_path) in given["script"]) == embedded == any(tmp_path.iterdir())
    assert not any("JavaOptions" in name for name in given if "executor" in name)
