"""Clones of streams that copy from others and are published to as well.

They cannot be cut at their end before the origins were read (`copy_positions.py`): messages overwritten meanwhile would
be lost. So such a stream is cloned completely, and its marks are limited to the ends of its origins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from jsbackup.engine.clone.live import LiveSupply
from jsbackup.engine.clone.live_source import Replan
from jsbackup.engine.clone.stream_clone import LiveSent
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.restore.proof import Proof
from jsbackup.engine.restore.stream_sources import Delivery, Sent
from jsbackup.planning.copies.copy_facts import sources_of
from jsbackup.planning.model import Action
from jsbackup.repository.read.archiving import state_to_restore
from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import is_external, source_key

__all__ = ["Ends", "OrderedSupply"]


class Ends:
    """Where the streams of one clone ended, by their names at the source; `growing` are the copies concerned.

    `matched` are the messages of all of them that met conditions of filters (`ReshapeTally`).
    """

    def __init__(self, growing: Collection[str]) -> None:
        self._growing = growing
        self._last: dict[str, int] = {}
        self.matched: Counter[str] = Counter()

    def note(self, sent: Sent) -> None:
        self._last[sent.entry.name] = state_to_restore(sent.entry).last_seq
        self.matched += sent.matched if isinstance(sent, LiveSent) else Counter()

    def bound(self, action: Action) -> Action:
        """Return the action, with marks limited to what was sent of its origins."""
        entry = action.entry
        if entry.name not in self._growing:
            return action
        sources = sources_of(entry.config)
        known = [mark.mend for mark in action.reshape.marks] or [Mend()] * len(sources)
        mends = {
            source_key(source): replace(mend, most=self._last[source["name"]])
            for source, mend in zip(sources, known, strict=True)
            if not is_external(source) and source["name"] in self._last
        }
        return replace(action, reshape=action.reshape.of_copy(entry.config, mends)) if mends else action


class OrderedSupply(LiveSupply):
    """Streams of a server whose ends are noted for the copies that are cloned later."""

    def __init__(
        self, ends: Ends, js: JetStream, replan: Replan, limits: CaptureLimits, *, secret: bytes = b""
    ) -> None:
        super().__init__(js, replan, limits, secret)
        self.ends = ends

    async def send(self, delivery: Delivery) -> Sent:
        sent = await super().send(replace(delivery, action=self.ends.bound(delivery.action)))
        self.ends.note(sent)
        return sent

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        return await super().prove(js, self.ends.bound(action), sent, advance=advance)
