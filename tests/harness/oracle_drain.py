"""What a consumer would deliver next: its pending and redelivered messages one by one, beyond the counters of its info.

Destructive: it changes the consumer (a short ack wait, so that pending messages come again at once) and delivers. Use
it on a copy, or at the end of a test.
"""

from __future__ import annotations

import json
import time

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError

from tests.harness.api import JSON, call
from tests.harness.awkward_bench import SECOND_NS, delivery

_ACK_WAIT_NS = SECOND_NS // 4
# Redeliveries come within an ack wait of being asked for; messages that will never come again are waited for this long.
_IDLE_SECONDS = 5.0
_MOST = 100_000


async def drain(nc: Client, stream: str, consumer: str, *, prefix: str = "$JS.API") -> dict[int, int]:
    """Stream sequence → how often it has been delivered with its next delivery; 2 and more for what was pending."""
    info = await call(nc, f"CONSUMER.INFO.{stream}.{consumer}", prefix=prefix)
    config = info["config"]
    expected = info["num_ack_pending"] + info["num_pending"]
    if expected > _MOST:
        raise ValueError(f"{expected} messages to drain from {stream}/{consumer}")
    await _hurry(nc, stream, consumer, config, expected, prefix)
    subject = config.get("deliver_subject")
    inbox = subject or nc.new_inbox()
    subscription = await nc.subscribe(inbox, queue=config.get("deliver_group") or "")
    pull: JSON | None = None if subject else _pull_request(config, expected)
    seen: dict[int, int] = {}
    waiting = False
    last = time.monotonic()
    while len(seen) < expected and time.monotonic() - last < _IDLE_SECONDS:
        if pull is not None and not waiting:
            request = json.dumps(pull).encode()
            await nc.publish(f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, reply=inbox)
            waiting, taken = True, 0
        try:
            message = await subscription.next_msg(timeout=0.2)
        except (NatsTimeoutError, TimeoutError):
            continue
        if not message.reply.startswith("$JS.ACK."):
            # A pull that ended, a heartbeat or a flow control request.
            waiting = waiting and _status(message) == "100"
            if message.reply:
                await message.respond(b"")
            continue
        if pull is not None:
            taken += 1
            waiting = taken < pull["batch"]
            if pin := (message.headers or {}).get("Nats-Pin-Id"):
                pull["id"] = pin
        one = delivery(message.reply, message.subject)
        if one.stream_sequence not in seen:
            seen[one.stream_sequence] = one.delivered
            last = time.monotonic()
    await subscription.unsubscribe()
    return dict(sorted(seen.items()))


async def _hurry(nc: Client, stream: str, consumer: str, config: JSON, expected: int, prefix: str) -> None:
    if config.get("pause_until"):
        await call(nc, f"CONSUMER.PAUSE.{stream}.{consumer}", {}, prefix=prefix)
    if config.get("priority_policy") == "pinned_client":
        for group in config["priority_groups"]:
            await call(nc, f"CONSUMER.UNPIN.{stream}.{consumer}", {"group": group}, prefix=prefix)
    if config["ack_policy"] not in ("explicit", "all"):
        return
    changed = {key: value for key, value in config.items() if key not in ("backoff", "pause_until", "rate_limit_bps")}
    changed["ack_wait"] = _ACK_WAIT_NS
    if 0 < changed.get("max_ack_pending", 0) <= expected:
        changed["max_ack_pending"] = expected + 1
    request = {"stream_name": stream, "config": changed, "action": "update"}
    await call(nc, f"CONSUMER.CREATE.{stream}.{consumer}", request, prefix=prefix)


def _pull_request(config: JSON, expected: int) -> JSON:
    request: JSON = {"batch": max(1, min(expected, config.get("max_batch") or expected)), "expires": SECOND_NS}
    if config.get("max_bytes"):
        request["max_bytes"] = config["max_bytes"]
    if groups := config.get("priority_groups"):
        request["group"] = groups[0]
    return request


def _status(message: Msg) -> str:
    return (message.headers or {}).get("Status", "")
