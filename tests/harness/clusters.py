"""A cluster of real nats-servers for tests, with a JetStream meta group that places streams."""

from __future__ import annotations

import json
import shutil
import socket
import time
from types import TracebackType
from typing import Any

from tests.harness.api import PATIENCE_SECONDS
from tests.harness.running import Running
from tests.harness.servers import NEWEST, START_SECONDS, NatsServer, Port, wait_until

# How long a meta group of healthy servers may take, and how often a fresh cluster is made again when it takes longer.
_META_SECONDS = 3.0
_FRESH_STARTS = 4
# Server source: a route that could not be made at the start is tried again after a second (`DEFAULT_ROUTE_CONNECT`).
# That there is one by now is found out afterwards, and makes servers forget what they knew of each other: streams find
# no peers, and answers are lost.
_ROUTES_SECONDS = 1.3
# Errors of JetStream while servers have not heard of each other: "no suitable peers", and no one listening at all.
_NO_PEERS = 10005
_UNAVAILABLE = 503
# What replicas of a stream have in common.
_ALIKE = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")


def ask(
    server: NatsServer, subject: str, request: dict[str, Any] | None = None, *, user: str | None = None
) -> dict[str, Any]:
    """One request as `user` ("name:password") on a connection of its own: what a test has to know before it begins.

    PermissionError where the server wants credentials, TimeoutError where it does not answer.
    """
    payload = json.dumps(request).encode() if request is not None else b""
    connect: dict[str, Any] = {"verbose": False, "headers": True, "no_responders": True}
    if user is not None:
        connect |= dict(zip(("user", "pass"), user.split(":"), strict=True))
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        lines = connection.makefile("rb")
        connection.sendall(b"CONNECT %b\r\nSUB _INBOX.ask 1\r\n" % json.dumps(connect).encode())
        connection.sendall(b"PUB %b _INBOX.ask %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        while line := lines.readline():
            if line.startswith(b"-ERR"):
                break
            if line.startswith((b"MSG", b"HMSG")):
                sizes = line.split()
                body = lines.read(int(sizes[-1]))
                header_size = int(sizes[-2]) if line.startswith(b"HMSG") else 0
                answer: dict[str, Any] = json.loads(body[header_size:] or b'{"error": {"code": 503}}')
                return answer
    raise PermissionError(f"nats-server {server.name} did not take a request on {subject}: {line!r}")


class NatsCluster(Running):
    """`size` servers with full routes and one JetStream meta group; use it as a context manager.

    `config` is appended to every server's configuration. Where that has accounts, `user` ("name:password") belongs to
    one with JetStream, and is who finds out whether streams find their peers.
    """

    def __init__(
        self,
        version: str = NEWEST,
        size: int = 3,
        *,
        config: str = "",
        name: str = "c1",
        domain: str | None = None,
        key: str | None = None,
        max_payload_bytes: int | None = None,
        user: str | None = None,
    ) -> None:
        self.version = version
        self.name = name
        self.domain = domain
        self._user = user
        self._routes = [Port() for _ in range(size)]
        self.servers = [
            NatsServer(
                version,
                name=f"n{index}",
                config=f"{_cluster_block(name, route, self._routes)}\n{config}",
                domain=domain,
                key=key,
                max_payload_bytes=max_payload_bytes,
            )
            for index, route in enumerate(self._routes, 1)
        ]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def url(self) -> str:
        """Comma list of all servers, as users write it."""
        return ",".join(self.urls)

    def start(self) -> None:
        """Starts all servers and waits for the meta group; a fresh cluster that comes up crippled is made again.

        Two servers of three can agree on a meta group before the third has connected; 2.10 then leaves the third out
        until something is proposed (about one start in twelve).
        """
        fresh = not any(server.store_directory.exists() for server in self.servers)
        for _ in range(_FRESH_STARTS if fresh else 0):
            self._start_all()
            try:
                self.wait_ready(seconds=_META_SECONDS)
                return
            except TimeoutError:
                for server in self.servers:
                    server.kill()
                    shutil.rmtree(server.store_directory)
        self._start_all()
        self.wait_ready()

    def _start_all(self) -> None:
        for server in self.servers:
            server.start(wait=False)

    def wait_ready(self, *, seconds: float = START_SECONDS) -> None:
        """All running servers are healthy and name the same meta leader, which sees as many peers as there are."""
        running = [server for server in self.servers if server.running]
        for server in running:
            server.wait_ready()
        wait_until(self._agreed, "a meta leader", *running, seconds=seconds)
        if len(running) == len(self.servers):
            last = max(server.started_at for server in running)
            time.sleep(max(0.0, last + _ROUTES_SECONDS - time.monotonic()))
            wait_until(self._places, "a stream to find its peers", *running)

    def _places(self) -> bool:
        # The meta leader places streams only on servers whose statistics have come, and no monitoring page shows that.
        # Servers with accounts refuse who has no user, and are taken as they are then.
        config: dict[str, Any] = {
            "name": "harness_probe",
            "subjects": ["harness_probe"],
            "storage": "memory",
            "retention": "limits",
        }
        config |= {"num_replicas": len(self.servers)}
        try:
            made = ask(self.servers[0], "$JS.API.STREAM.CREATE.harness_probe", config, user=self._user)
            error = made.get("error")
            if error is None:
                ask(self.servers[0], "$JS.API.STREAM.DELETE.harness_probe", user=self._user)
        except PermissionError:
            return True
        return error is None or not (error.get("err_code") == _NO_PEERS or error["code"] == _UNAVAILABLE)

    def _agreed(self) -> bool:
        running = [server for server in self.servers if server.running]
        try:
            metas = {server.name: server.monitor("/jsz").get("meta_cluster") or {} for server in running}
        except OSError:
            return False
        leaders = {meta.get("leader") for meta in metas.values()}
        leader = metas.get(leaders.pop() or "", {}) if len(leaders) == 1 else {}
        # The leader places streams only on peers that it has heard of lately.
        heard = [one["name"] for one in leader.get("replicas") or () if one.get("current") and not one.get("offline")]
        return leader.get("cluster_size") == len(self.servers) and len(heard) == len(running) - 1

    @property
    def meta_leader(self) -> NatsServer:
        for server in self.servers:
            if server.running and (leader := (server.monitor("/jsz").get("meta_cluster") or {}).get("leader")):
                return self.named(leader)
        raise RuntimeError(f"cluster {self.name} has no meta leader")

    def named(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)

    def leader_of(self, stream: str, *, account: str = "$G") -> NatsServer:
        """The server that leads the stream's group, waited for."""
        found: list[NatsServer] = []

        def known() -> bool:
            group = self._group(stream, account)
            found[:] = [self.named(group["leader"])] if group.get("leader") else []
            return bool(found)

        wait_until(known, f"a leader of stream {stream}", *self.servers)
        return found[0]

    def wait_current(self, stream: str, *, account: str = "$G") -> None:
        """Waits until the stream has a leader and all its replicas are current."""

        def current() -> bool:
            group = self._group(stream, account)
            replicas = group.get("replicas") or []
            return bool(group.get("leader")) and all(
                replica.get("current") and not replica.get("offline") and not replica.get("lag") for replica in replicas
            )

        wait_until(current, f"the replicas of stream {stream}", *self.servers)

    def wait_alike(self, *, account: str = "$G") -> None:
        """Waits until each stream is on as many servers as it has replicas, and holds the same on all of them.

        Replicas that count as current may still be empty, and one that has let go of a message stays different: so
        this proves what a leader's answers do not show.
        """
        try:
            wait_until(lambda: not self._unlike(account), "replicas that are alike", *self.servers)
        except TimeoutError as error:
            error.add_note("\n".join(self._unlike(account)))
            raise

    def _unlike(self, account: str) -> list[str]:
        held: dict[str, list[dict[str, Any]]] = {}
        replicas: dict[str, int] = {}
        for server in self.servers:
            accounts = server.monitor("/jsz?accounts=1&streams=1&config=1&limit=10000").get("account_details") or []
            for detail in (
                one for entry in accounts if entry["name"] == account for one in entry.get("stream_detail") or ()
            ):
                held.setdefault(detail["name"], []).append({key: detail["state"].get(key) for key in _ALIKE})
                replicas[detail["name"]] = detail["config"]["num_replicas"]
        return [
            f"{name}: {states}"
            for name, states in held.items()
            if len(states) != replicas[name] or any(state != states[0] for state in states)
        ]

    def _group(self, stream: str, account: str) -> dict[str, Any]:
        # The leader's own view is the one that counts: only it knows how far its followers are.
        for server in self.servers:
            if not server.running:
                continue
            try:
                accounts = server.monitor("/jsz?accounts=1&streams=1&limit=10000").get("account_details") or []
            except OSError:
                continue
            for entry in accounts:
                for detail in (entry.get("stream_detail") or []) if entry.get("name") == account else []:
                    group: dict[str, Any] = detail.get("cluster") or {}
                    if detail.get("name") == stream and group.get("leader") == server.name:
                        return group
        return {}

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for route in self._routes:
            route.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not for a skipped test.
        if isinstance(error, Exception):
            for server in self.servers:
                error.add_note(f"log of {server.name}:\n{server.log[-1500:]}")
        self.close()


def _cluster_block(name: str, own: Port, all_routes: list[Port]) -> str:
    urls = ", ".join(f'"nats-route://127.0.0.1:{route.number}"' for route in all_routes)
    return f"cluster {{ name: {name}, listen: 127.0.0.1:{own.number}, routes: [{urls}] }}"
