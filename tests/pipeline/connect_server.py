"""A real Spark Connect server of the tests, started from the pip-installed pyspark.

Its Python has what jsbackup depends on, and jsbackup not: that has to be sent. Rules are those of `standalone.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from jsbackup.pipeline.session.java import find_java
from tests.harness.servers import Port, wait_until
from tests.pipeline.quick_java import WORKERS, quick_java

_START_SECONDS = 120
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = "Spark Connect server started"


class ConnectServer:
    """One of two cores; `environment` is what its Python processes find."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-"))
        self._port = Port()
        self.url = f"sc://127.0.0.1:{self._port.number}"
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        spark = Path(spec.origin).parent
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port.number),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self.folder / "local"),
        }
        line = [str(spark / "bin" / "spark-submit"), "--class", _CLASS, "--master", "local[2,4]"]
        line += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        if setpriv := shutil.which("setpriv"):
            line = [setpriv, "--pdeathsig", "KILL", *line]
        variables = {
            **os.environ,
            **environment,
            **quick_java(),
            "PYTHONPATH": str(WORKERS),
            "JAVA_HOME": str(find_java(os.environ).resolve().parent.parent),
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(_python_without_jsbackup(self.folder / "venv")),
        }
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*line, "spark-internal"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                cwd=self.folder,
                start_new_session=True,
            )
        try:
            wait_until(lambda: _STARTED in self.log, "the Spark Connect server", seconds=_START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._port.release()
        shutil.rmtree(self.folder, ignore_errors=True)


def _python_without_jsbackup(folder: Path) -> Path:
    """An environment on top of this one. An editable install, which a hook makes known, is not seen from there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    names = {"base": str(folder), "platbase": str(folder)}
    below = Path(sysconfig.get_path("purelib", vars=names))
    (below / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    asked = subprocess.run([python, "-I", "-c", "import jsbackup"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in asked.stderr
    return python
