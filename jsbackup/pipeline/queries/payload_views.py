"""Payloads as columns of the views of a query, whichever engine runs it: which view has which schema.

With `infer`, each view that the query may name has a schema of its own, inferred from a sample of its streams; the view
of all streams has one from a sample of all. A view whose payloads are no JSON objects goes without these columns: a
word of the query is perhaps the name of a column, and of a stream too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_schema import infer_schema
from jsbackup.pipeline.payloads.json_types import is_infer, parse_schema
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.pipeline.payloads.payload_sample import sampled_tally, stored
from jsbackup.pipeline.payloads.payload_tally import PayloadTally, why_missed
from jsbackup.pipeline.queries.query_model import Answer, view_names
from jsbackup.pipeline.session.repository_ref import opened

__all__ = ["ViewPayloads", "view_payloads"]


# Of a query that may ask for payloads: their columns, or all there are.
_ASKED: Final = re.compile(rf"\b(?:{PAYLOAD}|{CORRUPT})\b|\*(?!\s*\))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ViewPayloads:
    """What parses the payloads of each view, by its name; the schemas that were inferred, in Spark's syntax; why views
    have no such columns; and, by a given schema, what samples of payloads have shown. The default has none at all.
    """

    parsers: Mapping[str, PayloadParser] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, UsageError] = field(default_factory=dict)
    samples: Mapping[str, PayloadTally] = field(default_factory=dict)

    @property
    def without(self) -> tuple[str, ...]:
        return tuple(error.message for error in self.refused.values())

    def about(self, answer: Answer) -> Answer:
        """Return an answer with what is to be said about payloads."""
        from jsbackup.exchange.exporting import PayloadCounts

        samples = {
            name: PayloadCounts(one.payloads, one.misfits, self.parsers[name].unseen(one))
            for name, one in self.samples.items()
        }
        doubts = [why_missed(one, f" of {name}", "sampled ") for name, one in self.samples.items() if one.missed]
        return replace(
            answer, payloads=self.schemas, without=self.without, payload_samples=samples, doubts=tuple(doubts)
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let an error about a column that a view has not say why. Raises that as a UsageError."""
        try:
            yield
        except UsageError as error:
            if self.refused and re.search(rf"\b(?:{PAYLOAD}|{CORRUPT})\b", error.message):
                raise next(iter(self.refused.values())) from error
            raise


def view_payloads(backup: ChosenBackup, sql: str, given: str | PayloadParser | None) -> ViewPayloads:
    """Return the payloads of the views that `sql` may name. `given` is what parses them; or their schema if they are
    JSON, or `infer`; None: they are no columns.

    Raises:
        UsageError: the schema is none.
        IntegrityError, KeyUnavailable, StoreError: the messages of a sample cannot be read.
    """
    if given is None:
        return ViewPayloads()
    names = view_names(backup.manifest.streams)
    objects, readable = opened(backup.place).objects, backup.streams()
    if isinstance(given, PayloadParser) or not is_infer(given):
        parser = given if isinstance(given, PayloadParser) else JsonParser(parse_schema(given))
        named = {name: stream for name, stream in names.items() if _ASKED.search(sql) and _may_name(sql, name)}
        samples = {
            name: sampled_tally([one for one in readable if stream in (None, one.name)], parser, stored(objects))
            for name, stream in named.items()
        }
        return ViewPayloads(dict.fromkeys(names, parser), samples=samples)
    parsers: dict[str, PayloadParser] = {}
    refused: dict[str, UsageError] = {}
    for name, stream in names.items():
        if not _may_name(sql, name):
            continue
        try:
            kind = infer_schema(objects, [one for one in readable if stream in (None, one.name)])
            parsers[name] = JsonParser(kind)
        except UsageError as error:
            refused[name] = error.with_message(f"{name}: {error.message}")
    return ViewPayloads(parsers, {name: parser.text for name, parser in parsers.items()}, refused)


def _may_name(sql: str, view: str) -> bool:
    """Return whether a view may be named: as a word, perhaps in the quotes of one engine or another."""
    words = sql.casefold()
    return any(
        re.search(rf"(?<!\w){re.escape(text.casefold())}(?!\w)", words)
        for text in (view, view.replace('"', '""'), view.replace("`", "``"))
    )
