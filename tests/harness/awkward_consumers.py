"""Awkward streams whose consumers are the point: what is delivered, pending, redelivered, paused, pinned."""

from __future__ import annotations

from tests.harness.awkward_bench import (
    HOUR_NS,
    LONG_NS,
    SECOND_NS,
    V2_11,
    V2_12,
    V2_14,
    Bench,
    Delivery,
    awkward,
)

MILLISECOND_NS = SECOND_NS // 1000
FAR = "2070-01-01T00:00:00Z"


async def nak(bench: Bench, consumer: str, deliveries: list[Delivery], **request: object) -> list[Delivery]:
    """Refuses these deliveries and pulls as many again: they come back with a higher count."""
    for one in deliveries:
        await bench.ack(one, verb=b"-NAK")
    return await bench.pull(consumer, len(deliveries), **request)


@awkward("WORKQUEUE", "a work queue: what is acknowledged is gone; two consumers with pending and redelivered messages")
async def work_queue(bench: Bench) -> None:
    await bench.create(retention="workqueue")
    await bench.consumer("low", filter_subjects=[f"{bench.root}.0", f"{bench.root}.1"])
    await bench.consumer("high", filter_subject=f"{bench.root}.2", max_deliver=9)
    await bench.publish_numbered(60, subjects=4)
    low = await bench.pull("low", 14)
    await bench.ack(low[0], low[1], low[4], low[9], low[13])
    await nak(bench, "low", low[5:7])
    high = await bench.pull("high", 3)
    await nak(bench, "high", high)
    await bench.publish_numbered(6, subjects=4, start=60)


@awkward("INTEREST", "interest: gone when both consumers have acknowledged")
async def interest(bench: Bench) -> None:
    await bench.create(retention="interest")
    await bench.consumer("first")
    await bench.consumer("second", filter_subject=f"{bench.root}.*")
    await bench.consumer("behind", ack_policy="all")
    await bench.publish_numbered(30)
    first = await bench.pull("first", 12)
    second = await bench.pull("second", 8)
    behind = await bench.pull("behind", 10)
    await bench.ack(*first[:3], first[6], first[9])
    await bench.ack(*second[:4], second[6])
    await bench.ack(behind[4])
    await nak(bench, "second", second[4:6])


@awkward("PULL", "durable pull consumers in every state of acknowledgement")
async def pull_consumers(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(100)
    await bench.delete(33, 34)
    await bench.consumer("untouched")
    await bench.consumer("scattered")
    scattered = await bench.pull("scattered", 40)
    await bench.ack(*(scattered[number] for number in (0, 1, 2, 5, 8, 13, 21, 34)))
    await bench.consumer("floor")
    await bench.ack(*(await bench.pull("floor", 25)))
    await bench.consumer("finished")
    await bench.ack(*(await bench.pull("finished", 98)))
    await bench.consumer("all", ack_policy="all")
    await bench.ack((await bench.pull("all", 20))[11])
    await bench.consumer("none", ack_policy="none")
    await bench.pull("none", 15)
    await bench.consumer("refused")
    refused = await bench.pull("refused", 12)
    again = await nak(bench, "refused", refused[3:8])
    await nak(bench, "refused", again[1:3])
    await bench.ack(refused[0], refused[10])
    await bench.consumer("terminated")
    terminated = await bench.pull("terminated", 6)
    await bench.ack(terminated[2], terminated[0], verb=b"+TERM")
    await bench.consumer("expired", ack_wait=100 * MILLISECOND_NS)
    expired = await bench.pull("expired", 5)
    await bench.ack(expired[1])
    # Nothing new is asked for before the first have run out: they are delivered a second time.
    await bench.pull("expired", 4)
    await bench.consumer("small-window", max_ack_pending=3)
    await bench.pull("small-window", 3)


@awkward("STARTS", "consumers that start at a sequence, a time, the end, with filters of several kinds")
async def starts(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(100)
    time = (await bench.call(f"STREAM.MSG.GET.{bench.name}", {"seq": 31}))["message"]["time"]
    await bench.consumer("by-sequence", deliver_policy="by_start_sequence", opt_start_seq=51)
    await bench.pull("by-sequence", 2)
    await bench.consumer("by-time", deliver_policy="by_start_time", opt_start_time=time)
    await bench.pull("by-time", 2)
    await bench.consumer("last", deliver_policy="last")
    await bench.consumer("last-per-subject", deliver_policy="last_per_subject", filter_subject=f"{bench.root}.*")
    await bench.pull("last-per-subject", 2)
    await bench.consumer("new", deliver_policy="new")
    await bench.consumer("one-filter", filter_subject=f"{bench.root}.3")
    await bench.ack(*(await bench.pull("one-filter", 4))[2:])
    await bench.consumer("filters", filter_subjects=[f"{bench.root}.1", f"{bench.root}.4"])
    await bench.ack(*(await bench.pull("filters", 7))[1:4])
    await bench.consumer("no-match", filter_subject=f"{bench.root}.none.>")


@awkward("SETTINGS", "consumers with every setting: backoff, headers only, replay, sampling, limits, metadata")
async def settings(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(30)
    await bench.consumer("backoff", backoff=[HOUR_NS, 2 * HOUR_NS, 3 * HOUR_NS], max_deliver=5)
    await nak(bench, "backoff", (await bench.pull("backoff", 4))[:2])
    await bench.consumer("exhausted", max_deliver=2)
    # A second refusal of these is one more than they have.
    await nak(bench, "exhausted", (await bench.pull("exhausted", 3))[:2])
    await bench.consumer("headers-only", headers_only=True)
    await bench.pull("headers-only", 2)
    await bench.consumer("original-pace", replay_policy="original")
    await bench.consumer("sampled", sample_freq="25%", description="größe 日本 <&>")
    await bench.consumer(
        "limits", max_waiting=3, max_batch=10, max_expires=60 * SECOND_NS, max_bytes=50_000, max_ack_pending=-1
    )
    await bench.consumer("metadata", metadata={"a": "b", "größe": "日本"})
    await bench.consumer("memory", mem_storage=True, num_replicas=1)
    await bench.ack(*(await bench.pull("memory", 5))[1:3])
    await bench.consumer("inactive-durable", inactive_threshold=LONG_NS)
    await bench.pull("inactive-durable", 1)
    await bench.consumer("ephemeral", durable=False, inactive_threshold=LONG_NS)
    await bench.ack(*(await bench.pull("ephemeral", 6))[2:4])
    await bench.consumer("ack-wait", ack_wait=HOUR_NS)
    await bench.pull("ack-wait", 3)


@awkward("PUSH", "push consumers: plain, with group, heartbeat, flow control, rate limit, ephemeral")
async def push_consumers(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(50)
    deliver = f"deliver.{bench.root}"
    await bench.consumer("plain", deliver_subject=f"{deliver}.plain", max_ack_pending=10)
    await bench.ack(*(await bench.receive(f"{deliver}.plain", 10))[:4])
    await bench.consumer("grouped", deliver_subject=f"{deliver}.grouped", deliver_group="workers", max_ack_pending=8)
    await bench.ack(*(await bench.receive(f"{deliver}.grouped", 8, queue="workers"))[3:5])
    await bench.consumer(
        "paced",
        deliver_subject=f"{deliver}.paced",
        ack_policy="none",
        flow_control=True,
        idle_heartbeat=5 * SECOND_NS,
        rate_limit_bps=10_000_000,
    )
    await bench.receive(f"{deliver}.paced", 50)
    await bench.consumer("unbound", deliver_subject=f"{deliver}.unbound")
    await bench.consumer(
        "push-ephemeral", durable=False, deliver_subject=f"{deliver}.ephemeral", inactive_threshold=LONG_NS
    )


@awkward("PENDING_DELETED", "consumers with pending messages that were deleted or purged since")
async def pending_deleted(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(40)
    await bench.consumer("inside")
    await bench.ack(*(await bench.pull("inside", 30))[10:12])
    await bench.consumer("behind")
    await bench.pull("behind", 5)
    await bench.delete(15, 20, 21)
    await bench.purge(seq=9)


@awkward("PAUSED", "paused consumers", since=V2_11)
async def paused(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(20)
    await bench.consumer("paused-at-once", pause_until=FAR)
    await bench.consumer("paused-later")
    await bench.ack(*(await bench.pull("paused-later", 5))[1:2])
    await bench.call(f"CONSUMER.PAUSE.{bench.name}.paused-later", {"pause_until": FAR})


@awkward("PRIORITY", "priority groups: overflow and pinned client", since=V2_11)
async def priority(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(30)
    await bench.consumer("overflow", priority_policy="overflow", priority_groups=["near"])
    await bench.ack(*(await bench.pull("overflow", 5, group="near", min_pending=2))[:2])
    timeout = 120 * SECOND_NS
    await bench.consumer("pinned", priority_policy="pinned_client", priority_groups=["one"], priority_timeout=timeout)
    await bench.ack(*(await bench.pull("pinned", 4, group="one"))[1:3])


@awkward("PRIORITIZED", "priority groups by priority", since=V2_12)
async def prioritized(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(20)
    await bench.consumer("prioritized", priority_policy="prioritized", priority_groups=["g"])
    await bench.ack(*(await bench.pull("prioritized", 4, group="g", priority=2))[1:3])


@awkward("ACK_FLOW", "acknowledged by flow control", since=V2_14)
async def ack_flow_control(bench: Bench) -> None:
    await bench.create()
    await bench.publish_numbered(20)
    await bench.consumer(
        "by-flow",
        ack_policy="flow_control",
        deliver_subject=f"deliver.{bench.root}.flow",
        flow_control=True,
        idle_heartbeat=SECOND_NS,
    )
