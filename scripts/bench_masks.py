"""How many messages a second one core masks, filters and maps: `scripts/bench masks`. Needs no server.

Messages are orders in JSON of about 300 and 1,000 bytes, with names in UTF-8, a header, and a subject of their own. A
row is a case:

    compiled    messages by a processor second of the compiled kernel, the best of some runs
    python      the same of its twin in pure Python, which runs where the kernel could not be compiled
    times       how many times as many that is
    of a pass   the time of a pass with it, as a multiple of one without: reading the messages from a segment in memory
                and computing their digest, as a restore does

Figures of one machine only compare with each other.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from jsbackup.formats import kernels
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.digest import StreamDigester
from jsbackup.formats.segment import SegmentEncoder, decode_segment
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule, find_newest, rows_of_subjects
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from scripts.bench_tables import markdown

__all__: list[str] = []

_SECRET = bytes(range(32))
_EMAIL = "orders.>:$.customer.email"

CASES: dict[str, Reshape] = {
    "one value, redact": Reshape(masks=Masks.parse([f"{_EMAIL}=redact"])),
    "one value, hash": Reshape(masks=Masks.parse([f"{_EMAIL}=hash"])),
    "a name at any depth, redact": Reshape(masks=Masks.parse(["orders.>:$..title=redact"])),
    "a value of each element, hash": Reshape(masks=Masks.parse(["orders.>:$.items[*].sku=hash"])),
    "an object, hash": Reshape(masks=Masks.parse(["orders.>:$.customer=hash"])),
    "three paths": Reshape(
        masks=Masks.parse([f"{_EMAIL}=hash", "orders.>:$.customer.name=redact", "orders.>:$.items[*].sku=hash"])
    ),
    "a header, redact": Reshape(masks=Masks.parse(["orders.>:header(X-User)=redact"])),
    "a header, hash": Reshape(masks=Masks.parse(["orders.>:header(X-User)=hash"])),
    "payload, zero": Reshape(masks=Masks.parse([">:payload=zero"])),
    "--subject": Reshape(filters=Filters.parse({"subject": ["bills.>", "orders.*.eu.>"]})),
    "--header": Reshape(filters=Filters.parse({"header": ["x-user:u7", "X-User"]})),
    "--payload-match": Reshape(filters=Filters.parse({"payload_match": [r"(?i)eva\d+@EXAMPLE\.com"]})),
    "--last-per-subject": Reshape(newest=NewestRule()),
    "--renumber": Reshape(renumber=True),
    "--map-subject": Reshape(maps=SubjectMaps.parse(["orders.*.eu.>=>eu.orders.$1.>"])),
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A case with messages of a size; rates in messages by a processor second."""

    case: str
    message_bytes: int
    compiled: float
    python: float
    of_a_pass: float


def order(number: int, size: int) -> bytes:
    """A document of about that many bytes."""
    made: dict[str, Any] = {
        "id": number,
        "type": "order.created",
        "time": "2026-11-21T14:02:00.123Z",
        "customer": {
            "id": number % 977,
            "name": "Eva Müller",
            "email": f"eva{number}@example.com",
            "address": {"street": "Main St 5", "city": "Berlin", "zip": "10115"},
        },
        "total": 12.5 + number % 7,
        "currency": "EUR",
        "paid": True,
        "items": [],
    }
    while True:
        text = json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) >= size:
            return text
        at = len(made["items"])
        item = {"sku": f"SKU-{number % 100}-{at}", "qty": at + 1, "price": 9.99, "title": "A thing of some kind"}
        made["items"].append(item)


def segment_of(count: int, size: int) -> pa.Buffer:
    """A segment of so many orders."""
    chance = random.Random(size)
    encoder = SegmentEncoder()
    columns = [
        range(1, count + 1),
        range(10**18, 10**18 + count),
        [f"orders.{number}.eu.created" for number in range(count)],
        [b"NATS/1.0\r\nX-User: u%d\r\n\r\n" % chance.randrange(1000) for _ in range(count)],
        [order(number, size) for number in range(count)],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
    encoder.write(pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA))
    return encoder.finish()


def best(runs: int, *works: Callable[[], object]) -> list[float]:
    """The processor seconds of the quickest run of each; they take turns, since a busy machine drifts."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(runs):
        for work, found in zip(works, seconds, strict=True):
            began = time.process_time()
            work()
            found.append(time.process_time() - began)
    return [max(min(found), 1e-9) for found in seconds]


def looked_at(reshape: Reshape, read: Callable[[], Iterable[pa.RecordBatch]]) -> Reshape:
    """With the newest messages, if it needs to know them: they take a reading of their own."""
    rule = reshape.newest
    if rule is None:
        return reshape
    return replace(reshape, chosen=find_newest(rule, lambda: (rows_of_subjects(one, rule) for one in read())))


def reshaped(reshape: Reshape, batches: Sequence[pa.RecordBatch]) -> None:
    for _ in looked_at(reshape, lambda: batches).apply(batches, stream="S", secret=_SECRET):
        pass


def whole_pass(reshape: Reshape, segment: pa.Buffer) -> None:
    digester = StreamDigester()
    reshape = looked_at(reshape, partial(decode_segment, segment))
    for batch in reshape.apply(decode_segment(segment), stream="S", secret=_SECRET):
        digester.update(batch)


def rates(count: int, runs: int) -> Iterator[Rate]:
    chosen = kernels.active()
    for size in (300, 1000):
        segment = segment_of(count, size)
        batches = list(decode_segment(segment))
        few = [batches[0].slice(0, max(1, count // 20))]  # the twin takes long

        def rate(kernel: Literal["compiled", "python"], of: Sequence[pa.RecordBatch], reshape: Reshape) -> float:
            kernels.use(kernel)
            try:
                return sum(one.num_rows for one in of) / best(runs, lambda: reshaped(reshape, of))[0]
            finally:
                kernels.use(chosen)  # type: ignore[arg-type]

        for case, reshape in CASES.items():
            passes = (partial(whole_pass, one, segment) for one in (Reshape(), reshape))
            plain, masked = best(runs, *passes)
            compiled, python = rate("compiled", batches, reshape), rate("python", few, reshape)
            yield Rate(case, size, round(compiled), round(python), round(masked / plain, 2))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench masks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="few messages, one run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    found = []
    if not asked.json:
        print(markdown(["messages a second and core", "bytes", "compiled", "python", "times", "of a pass"]))
        print(markdown(["---", *["---:"] * 5]))
    for one in rates(*((500, 1) if asked.short else (40_000, 7))):
        found.append(one)
        if not asked.json:
            cells = [f"{one.message_bytes:,}", f"{one.compiled:,.0f}", f"{one.python:,.0f}"]
            print(markdown([one.case, *cells, f"{one.compiled / one.python:.0f}", f"{one.of_a_pass:.2f}"]), flush=True)
    if asked.json:
        print(json.dumps({"rows": [asdict(one) for one in found]}, indent=2))


if __name__ == "__main__":
    main()
