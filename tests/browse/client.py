"""A running `jsbackup browse`, and a client of it that does what a browser does with cookies."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from tests.harness.commands import command_line, environment

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """What a reader sees of it, in one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    @property
    def links(self) -> list[str]:
        return [unescape(link) for link in re.findall(r'<a\b[^>]*\bhref="([^"]*)"', self.text)]

    @property
    def problem(self) -> str:
        """What a page says is wrong, "" if nothing."""
        found = re.search(r'role="alert"><p>(.*?)</p>', self.text, re.DOTALL)
        return unescape(found[1]) if found else ""


class Browsing:
    """`with Browsing("-r", repo) as page: page.get("/")`."""

    def __init__(self, *arguments: str | Path, folder: Path | None = None, **extra: str) -> None:
        """`folder` is where the command is started."""
        self._line = command_line("browse", *arguments)
        self._environment = environment(**extra)
        self._folder = folder

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            cwd=self._folder,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _SECONDS)
        self.said = self._process.stdout.readline() if ready else ""
        found = re.match(r"http://(\S+):(\d+)/\?token=(\S+)", self.said)
        if found is None:
            self._process.kill()
            raise AssertionError((self.said, self._process.communicate()[1]))
        self.url = found[0]
        self.host, self.port, self.token = found[1], int(found[2]), found[3]
        self.cookie = ""
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    def log_in(self) -> Self:
        """Exchange the token for the cookie."""
        answer = self.ask("GET", f"/?token={self.token}")
        assert answer.status == 200
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for nothing."""
        self._process.send_signal(signal.SIGINT)

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it by a signal; return the exit code and what is on stderr."""
        self._process.send_signal(number)
        _, err = self._process.communicate(timeout=_SECONDS)
        return self._process.returncode, err

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def memory_bytes(self) -> int:
        """The most that the process ever had in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
        """A request exactly as given, with the cookie if there is one."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        try:
            given = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, headers={**given, **(headers or {})})
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Answer:
        said = urlencode({name.rstrip("_"): str(value) for name, value in query.items()})
        return self.ask("GET", f"{path}?{said}" if said else path)

    def timed(self, path: str, **query: object) -> tuple[Answer, float]:
        begin = time.monotonic()
        return self.get(path, **query), time.monotonic() - begin


def pasted(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command line that a page showed, as it is."""
    line = command_line(*words[1:])
    return subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, env=environment(), check=False)


@dataclass
class Elements(HTMLParser):
    """The tags and attributes of a page."""

    tags: set[str] = field(default_factory=set)
    attributes: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}


def rows(answer: Answer, caption: str = "") -> list[list[str]]:
    """The cells of the first table, or of that with a caption."""
    for table in re.findall(r"<table.*?</table>", answer.text, re.DOTALL):
        if caption in table:
            return [
                [
                    " ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split())
                    for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
                ]
                for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
                if "<td" in row
            ]
    return []
