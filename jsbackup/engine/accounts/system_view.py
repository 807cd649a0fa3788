"""Find the accounts that have JetStream, and their streams, in all servers and domains of a system.

Ask all servers of a system, as a user of the system account.

Nobody says how many servers will answer. STATSZ tells how many there are, and the meta group of a cluster which of them
are offline: so what did not answer is known, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from jsbackup.config.accounts import AccountClaims, account_claims
from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import gather_some
from jsbackup.engine.link.link import Link
from jsbackup.errors import FormatError, NatsError, NatsNoResponders, NatsTimeout
from jsbackup.protocol.dialogue import Message
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.protocol.system import (
    CLAIMS_LIST,
    JSZ,
    PAGE,
    STATSZ,
    ServerAnswer,
    account_details,
    account_info_subject,
    active_servers,
    claims_lookup_subject,
    decode_answer,
    jsz_accounts,
    jsz_streams,
    listed_accounts,
    meta_group,
)
from jsbackup.repository.origin import Origin, named_cluster

__all__ = ["AccountSurvey", "FoundAccount", "SystemView", "system_view"]

_log = logging.getLogger(__name__)

# A server that answers at all does so at once; beyond this the others are waited for no longer.
_QUIET_SECONDS = 0.5


@dataclass(slots=True)
class System:
    """The servers behind a link. `servers` is how many there are, once `count` was called."""

    link: Link
    limit_seconds: float
    servers: int = 1

    async def count(self) -> list[ServerAnswer]:
        """Find out how many servers there are; return the answers of all. Raises NatsError: the user is not of the
        system account, or may not ask.
        """

        def all_there(answers: Sequence[ServerAnswer]) -> bool:
            return len(answers) >= max(map(active_servers, answers))

        try:
            answers = await self._answers(STATSZ, b"", all_there)
        except NatsNoResponders:
            raise NatsError(
                f"the user that is logged in to {self.link.server} is not one of the system account, which alone knows "
                "all accounts",
                hint="Give the credentials of a user of the system account (for nsc: of account SYS).",
            ) from None
        if not answers:
            raise NatsTimeout(f"no server answers on {STATSZ} within {self.limit_seconds:g} s")
        self.servers = max(len(answers), *map(active_servers, answers))
        return answers

    async def ask_all(self, subject: str, payload: bytes) -> list[ServerAnswer]:
        """Return what the servers answer, in no order; fewer than `servers` if some do not. Raises NatsError."""
        return await self._answers(subject, payload, lambda answers: len(answers) >= self.servers)

    async def ask_any(
        self, subject: str, payload: bytes, good: Callable[[Message], bool], *, all_of_them: bool = False
    ) -> list[Message]:
        """Return the first answer that is `good`, or all of those; none if there is none. Not every server may answer:
        waits a moment after the last one. Raises NatsError.
        """
        answers: list[Message] = []
        seen = 0
        try:
            async with self.link.subscribe(self.link.new_inbox()) as inbox:
                await inbox.publish(subject, payload, inbox.subject)
                wait = self.limit_seconds
                while seen < self.servers:
                    message = await inbox.next(wait)
                    if _nobody(message):
                        return []
                    seen += 1
                    wait = min(_QUIET_SECONDS, wait)
                    if good(message):
                        answers.append(message)
                        if not all_of_them:
                            break
        except NatsTimeout:
            pass
        return answers

    async def _answers(
        self, subject: str, payload: bytes, enough: Callable[[Sequence[ServerAnswer]], bool]
    ) -> list[ServerAnswer]:
        answers: dict[str, ServerAnswer] = {}
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limit_seconds
        async with self.link.subscribe(self.link.new_inbox()) as inbox:
            await inbox.publish(subject, payload, inbox.subject)
            while not answers or not enough(list(answers.values())):
                try:
                    message = await inbox.next(max(0.0, until - loop.time()))
                except NatsTimeout:
                    break
                if _nobody(message):
                    raise NatsNoResponders(f"nothing answers on {subject}")
                try:
                    answer = decode_answer(message.data, f"answer to {subject}")
                except FormatError as error:
                    _log.warning("%s", error.message)
                    continue
                answers[answer.server] = answer
        return list(answers.values())


def _nobody(message: Message) -> bool:
    """Return whether the server reports that nobody listens."""
    status = parse_status(message.headers) if message.headers and not message.data else None
    return status is not None and status.code == NO_RESPONDERS


_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FoundAccount:
    """An account: its public key or its name, the operator's name for it ("" without one), and a domain of its
    JetStream ("" for none). `bytes` is what its servers store, replicas counted.
    """

    account: str
    name: str = ""
    domain: str = ""
    bytes: int = 0

    @property
    def words(self) -> str:
        """`shop (AABC…)`, with the whole key; the domain, if there is one."""
        named = f"{self.name} ({self.account})" if self.name else self.account
        return f"{named} in domain {self.domain}" if self.domain else named

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called."""
        return tuple(filter(None, (self.account, self.name)))


@dataclass(frozen=True, slots=True)
class AccountSurvey:
    """The accounts with JetStream, by name. `domains` are those of the servers that answered; `problems` are sentences
    about servers that may have more accounts.
    """

    accounts: tuple[FoundAccount, ...]
    servers: int
    answered: int
    domains: frozenset[str]
    problems: tuple[str, ...] = ()


class SystemView:
    """What the system account sees. All methods raise NatsError and FormatError."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._claims: dict[str, AccountClaims | None] = {}
        self.domains: frozenset[str] = frozenset()  # of the servers that answered the survey

    @property
    def link(self) -> Link:
        return self._system.link

    def connection(self, account: FoundAccount, base: Connection) -> Connection:
        """Return the connection with the domain by which the JetStream of an account is reached through this link."""
        own = account.domain in ("", self.link.domain or "")
        return replace(base, js_domain=None if own else account.domain, js_api_prefix=None)

    def origin(self, account: FoundAccount) -> Origin:
        """Return the origin that backups of an account have."""
        return Origin(
            cluster=named_cluster(self.link.cluster_name or self.link.server_name or ""),
            account=account.account,
            domain=account.domain or self.link.domain or "",
            account_name=account.name,
        )

    async def survey(self) -> AccountSurvey:
        """Find the accounts that have JetStream."""
        await self._system.count()
        by_domain: dict[tuple[str, str], dict[str, FoundAccount]] = {}
        answers = await self._system.ask_all(JSZ, jsz_accounts(0))
        servers, answered = self._system.servers, len(answers)
        problems = list(self._problems(answers))
        self._system.servers = answered  # the others are not waited for again
        self.domains = frozenset(answer.domain for answer in answers if not answer.data.flag("disabled"))
        offset = 0
        while answers:
            more = False
            for answer in answers:
                details = list(account_details(answer))
                more = more or len(details) >= PAGE
                for detail in details:
                    name = "" if detail.name == detail.account else detail.name
                    account = FoundAccount(detail.account, name, answer.domain, detail.bytes)
                    by_domain.setdefault((detail.account, answer.domain), {})[answer.server] = account
            offset += PAGE
            answers = await self._system.ask_all(JSZ, jsz_accounts(offset)) if more else []
            if more and len(answers) < answered:
                problems.append(f"{answered - len(answers)} servers did not send all of their list of accounts")
        accounts = [_merged(list(by_server.values())) for by_server in by_domain.values()]
        accounts.sort(key=lambda account: (account.name or account.account, account.account, account.domain))
        return AccountSurvey(tuple(accounts), servers, answered, self.domains, tuple(problems))

    def _problems(self, answers: Sequence[ServerAnswer]) -> Iterable[str]:
        """Yield why accounts may be missing.

        Measured: servers of 2.15 that were started again know no account of which only a server that is gone has
        streams. Their cluster still counts that server.
        """
        for answer in answers:
            if answer.error:
                yield f"server {answer.name} cannot list its accounts: {answer.error}"
        lacking, named = 0, set[str]()
        for domain in {answer.domain for answer in answers}:
            of_domain = [answer for answer in answers if answer.domain == domain]
            groups = [group for group in map(meta_group, of_domain) if group is not None]
            with_jetstream = [answer for answer in of_domain if not answer.data.flag("disabled")]
            lacking += max(0, max((group.size for group in groups), default=0) - len(with_jetstream))
            named |= {name for group in groups for name in group.names} - {answer.name for answer in of_domain}
        silent = max(lacking, self._system.servers - len(answers))
        if silent > 0:
            which = f" (not {', '.join(sorted(named))})" if named and len(named) <= silent else ""
            yield (
                f"{len(answers)} of {len(answers) + silent} servers answered{which}: accounts that only the others "
                "know may be missing"
            )

    async def streams(self, account: FoundAccount) -> dict[str, StreamInfo]:
        """Return the streams of an account, by name."""
        streams: dict[str, StreamInfo] = {}
        for answer in await self._system.ask_all(JSZ, jsz_streams(account.account)):
            if answer.domain != account.domain:
                continue
            for detail in account_details(answer):
                for document in detail.streams if detail.account == account.account else ():
                    info = stream_info(document, f"streams of account {account.account}")
                    streams.setdefault(info.name, info)
        return streams

    async def claims(self, account: str) -> AccountClaims | None:
        """Return what the account's JWT says; None if no server tells it. Only loaded accounts are known everywhere,
        others to resolvers that keep files.
        """
        if account not in self._claims:
            self._claims[account] = await self._loaded(account) or await self._resolved(account)
        return self._claims[account]

    def forget_unknown(self) -> None:
        """Ask again for claims that were not known before: an account may have been loaded since."""
        self._claims = {account: claims for account, claims in self._claims.items() if claims is not None}

    async def _loaded(self, account: str) -> AccountClaims | None:
        def good(message: Message) -> bool:
            return _claims_of_info(message) is not None

        try:
            answers = await self._system.ask_any(account_info_subject(account), b"", good)
        except NatsError as error:
            _log.info("account %s: %s", account, error.message)
            return None
        return _claims_of_info(answers[0]) if answers else None

    async def _resolved(self, account: str) -> AccountClaims | None:
        try:
            answers = await self._system.ask_any(
                claims_lookup_subject(account), b"", lambda message: bool(message.data)
            )
        except NatsError as error:
            _log.info("account %s: %s", account, error.message)
            return None
        return account_claims(answers[0].data.decode("utf-8", "replace")) if answers else None

    async def resolver_accounts(self) -> list[FoundAccount]:
        """Return all accounts of the operator that resolvers keep, with their names; none if no resolver says."""
        try:
            answers = await self._system.ask_any(CLAIMS_LIST, b"", lambda message: True, all_of_them=True)
        except NatsError as error:
            _log.info("the accounts of the resolver are not known: %s", error.message)
            return []
        keys: dict[str, None] = {}
        for message in answers:
            try:
                keys |= dict.fromkeys(listed_accounts(decode_answer(message.data, "list of accounts")))
            except FormatError as error:
                _log.info("%s", error.message)
        claims = await gather_some(_AT_ONCE, self.claims, keys)
        named = zip(keys, claims, strict=True)
        return [FoundAccount(key, "" if claims is None else claims.name) for key, claims in named]


@asynccontextmanager
async def system_view(connection: Connection) -> AsyncIterator[SystemView]:
    """Connect as a user of the system account. Raises NatsError."""
    async with await Link.connect(connection, name="jsbackup") as link:
        yield SystemView(System(link, connection.timeout_seconds))


def _merged(seen: Sequence[FoundAccount]) -> FoundAccount:
    """Return an account as several servers know it."""
    name = next((account.name for account in seen if account.name), "")
    return replace(seen[0], name=name, bytes=sum(account.bytes for account in seen))


def _claims_of_info(message: Message) -> AccountClaims | None:
    try:
        return account_claims(decode_answer(message.data, "account info").data.text("jwt", ""))
    except FormatError:
        return None
