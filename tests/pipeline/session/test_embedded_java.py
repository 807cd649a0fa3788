"""Java's options of an embedded Spark and of the driver of a cluster: the user's come first; executors get none."""

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


def _given(master: str, monkeypatch: pytest.MonkeyPatch, cache: Path, conf: dict[str, str]) -> dict[str, str]:
    """Return what is given to Spark, which does not start here, and the script that is its Java."""
    given: dict[str, str] = {}

    def launch(_: str, conf: dict[str, str], home: Path, _wait_seconds: float) -> None:
        given.update(conf, script=(home / "bin" / "java").read_text())
        raise OSError("it does not start")

    monkeypatch.setattr(session, "_launch", launch)
    monkeypatch.setattr(session, "_reach", lambda _: None)
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with (
        pytest.raises(Exception, match="Spark does not start: it does not start"),
        open_session(SparkSettings(master, conf, is_short=True)),
    ):
        pass
    return given


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:1", "yarn"])
def test_our_own_java_gets_them_and_executors_do_not(
    master: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = _given(master, monkeypatch, tmp_path, {"spark.executor.memory": "1g"})
    assert "-XX:TieredStopAtLevel=1" in given[OPTIONS]
    assert not any("JavaOptions" in name for name in given if "executor" in name)
    users = _given(master, monkeypatch, tmp_path, {OPTIONS: "-XX:+UseG1GC"})
    assert users[OPTIONS] == "-XX:+UseG1GC"


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:1"])
def test_the_driver_of_a_cluster_uses_an_archive_and_makes_none(
    master: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = _given(master, monkeypatch, tmp_path, {})
    embedded = master.startswith("local")
    assert ("-XX:ArchiveClassesAtExit" in given["script"] or "AOTCacheOutput" in given["script"]) == embedded
    for lock in tmp_path.rglob("*.lock"):
        archive = lock.with_suffix(".jsa" if "ArchiveClassesAtExit" in given["script"] else ".aot")
        archive.write_bytes(b"archive")
        archive.chmod(0o600)
        archive.with_suffix(".size").write_text("7")
        for other in ("local[2]", "spark://127.0.0.1:1"):
            script = _given(other, monkeypatch, tmp_path, {})["script"]
            assert f"={archive}" in script and archive.exists()
