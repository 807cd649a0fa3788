"""Run a command of jsbackup, and count its requests to stores: `python -m scripts.bench_counted FILE WORD…`.

Writes a JSON document to FILE when the command ends, and ends with its exit code. Counted is what a bill counts:

    a folder  the store's operations; a listing is one request for each thousand objects
    S3        HTTP requests as they are sent, retries too; bytes are those of bodies, both ways

`commits` has what each backup's manifest was put at: everything counted so far and the processor's seconds, so that the
difference between two of them is what one commit of `follow` costs.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jsbackup.cli.main import run
from jsbackup.memory import keep_one_heap
from jsbackup.stores.base import Data, ObjectInfo
from jsbackup.stores.local import LocalStore

__all__: list[str] = []

PAGE = 1000  # of S3's ListObjectsV2


class Counts:
    """What was asked of stores so far. From several threads."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.read_bytes = self.written_bytes = 0
        self.commits: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, kind: str, *, read: int = 0, written: int = 0, number: int = 1) -> None:
        with self._lock:
            self.requests[kind] += number
            self.read_bytes += read
            self.written_bytes += written

    def committed(self) -> None:
        """A manifest was put."""
        with self._lock:
            self.commits.append({**self.document(), "at": time.time(), "processor_seconds": time.process_time()})

    def document(self) -> dict[str, Any]:
        return {
            "requests": dict(self.requests),
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
        }


def count_folders(counts: Counts) -> None:
    """Count the operations of all stores in folders of this process."""
    put, get, get_range = LocalStore.put, LocalStore.get, LocalStore.get_range
    head, listed, delete = LocalStore.head, LocalStore.list, LocalStore.delete

    def counted_put(self: LocalStore, key: str, data: Data) -> None:
        counts.add("put", written=memoryview(data).nbytes)
        put(self, key, data)
        if key.startswith("backups/"):
            counts.committed()

    def counted_get(self: LocalStore, key: str) -> bytes:
        data = get(self, key)
        counts.add("get", read=len(data))
        return data

    def counted_range(self: LocalStore, key: str, offset: int, length: int) -> bytes:
        data = get_range(self, key, offset, length)
        counts.add("get", read=len(data))
        return data

    def counted_list(self: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        counts.add("list")
        for number, info in enumerate(listed(self, prefix)):
            if number and number % PAGE == 0:
                counts.add("list")
            yield info

    def counted(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any) -> Any:
            counts.add(kind)
            return method(*arguments)

        return call

    replaced = {"put": counted_put, "get": counted_get, "get_range": counted_range, "list": counted_list}
    replaced |= {"head": counted("head", head), "delete": counted("delete", delete)}
    for name, method in replaced.items():
        setattr(LocalStore, name, method)


def count_s3(counts: Counts) -> None:
    """Count the HTTP requests of botocore in this process."""
    from botocore.httpsession import URLLib3Session

    send = URLLib3Session.send

    def counted(self: URLLib3Session, request: Any) -> Any:
        answer = send(self, request)
        parts = urlsplit(request.url)
        read = int(answer.headers.get("Content-Length") or 0) if request.method != "HEAD" else 0
        counts.add(_kind(request.method, parts.query), read=read, written=_body_bytes(request.body))
        if request.method == "PUT" and "/backups/" in parts.path.partition("/")[2].partition("/")[2]:
            counts.committed()
        return answer

    URLLib3Session.send = counted


def _kind(method: str, query: str) -> str:
    asked = parse_qs(query, keep_blank_values=True)
    if method == "GET" and asked.keys() & {"list-type", "versions", "uploads"}:
        return "list"
    if method == "GET" and asked.keys() & {"versioning", "object-lock", "location"}:
        return "other"
    return {"GET": "get", "PUT": "put", "HEAD": "head", "DELETE": "delete"}.get(method, "other")


def _body_bytes(body: Any) -> int:
    if body is None:
        return 0
    if isinstance(body, (bytes, bytearray, memoryview)):
        return memoryview(body).nbytes
    at = body.tell()
    size = body.seek(0, 2)
    body.seek(at)
    return int(size)


def main(file: Path, words: Sequence[str]) -> int:
    keep_one_heap()  # as the console script does
    counts = Counts()
    if any(word.startswith("s3://") for word in words):
        count_s3(counts)
    else:
        count_folders(counts)
    try:
        return run(list(words))
    finally:
        file.write_text(json.dumps({**counts.document(), "commits": counts.commits}))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
