"""A real YARN of the tests: Hadoop's mini cluster, with a manager and two nodes in a Java of its own.

Rules are those of `tests/harness/servers.py`: 127.0.0.1 alone, free ports, a folder of its own, ended by pid.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsbackup.pipeline.session.java import find_java
from tests.harness.running import Running
from tests.harness.servers import missing

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "hadoop"
# The mini cluster itself finds out which ports are free. A container that takes more memory than it was given is ended,
# as on a cluster of others. Virtual memory is not looked at: Java reserves much that it does not use.
_SETTINGS = {
    "fs.defaultFS": "file:///",
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.resource.memory-mb": "3072",
    "yarn.nodemanager.pmem-check-enabled": "true",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}


class Yarn(Running):
    """A manager and two nodes; `conf_dir` is the HADOOP_CONF_DIR of its clients, `jars` what its containers run."""

    def __init__(self) -> None:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            missing("pyspark is not installed: pip install 'jsbackup[spark]'")
        assert spec is not None and spec.origin is not None
        self.jars = Path(spec.origin).parent / "jars"
        own = sorted(_CACHE.glob("*.jar"))
        versions = [
            {path.stem.rpartition("-")[2] for path in paths}
            for paths in (self.jars.glob("hadoop-client-api-*.jar"), _CACHE.glob("hadoop-client-minicluster-*.jar"))
        ]
        if not own or versions[0] != versions[1]:
            missing(f"no mini cluster of Hadoop {versions[0]}: run scripts/hadoop")
        self._own = own
        self.folder = Path(tempfile.mkdtemp(prefix="yarn-"))
        self.conf_dir = self.folder / "conf"
        self.conf_dir.mkdir()
        self._gateway: Any = None
        self._process: Any = None

    def start(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        (py4j,) = self.jars.glob("py4j-*.jar")
        with (self.folder / "log").open("wb") as log:
            port, self._process = launch_gateway(
                java_path=str(find_java(os.environ)),
                classpath=os.pathsep.join([*map(str, self._own), str(self.jars / "*")]),
                jarpath=str(py4j),
                javaopts=["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
                die_on_exit=True,
                redirect_stdout=log,
                redirect_stderr=log,
                cwd=str(self.folder),
                return_proc=True,
            )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        java = self._gateway.jvm
        conf = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in _SETTINGS.items():
            conf.set(name, value)
        cluster = java.org.apache.hadoop.yarn.server.MiniYARNCluster("mini", 2, 1, 1)
        cluster.init(conf)
        cluster.start()
        assert cluster.waitForNodeManagersToConnect(60_000)
        out = java.java.io.FileOutputStream(str(self.conf_dir / "yarn-site.xml"))
        cluster.getConfig().writeXml(out)
        out.close()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        if self._process is not None:
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
