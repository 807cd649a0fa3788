"""Ask all servers of a system, as a user of the system account.

Nobody says how many servers will answer. STATSZ tells how many there are, and the meta group of a cluster which of them
are offline: so what did not answer is known, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jsbackup.engine.link.link import Link
from jsbackup.errors import FormatError, NatsError, NatsNoResponders, NatsTimeout
from jsbackup.protocol.events import Message
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.protocol.system import STATSZ, ServerAnswer, active_servers, decode_answer

__all__ = ["System"]

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
        found: list[Message] = []
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
                        found.append(message)
                        if not all_of_them:
                            break
        except NatsTimeout:
            pass
        return found

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
