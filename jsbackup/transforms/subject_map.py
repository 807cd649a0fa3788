"""`--map-subject 'FROM=>TO'`: change the subjects of messages, and everything that names these subjects.

FROM is a subject with wildcards, TO the result in the server's syntax (nats-server `server/subject_transform.go`): a
token `$1` or `{{wildcard(1)}}` is the token matched by the first `*` of FROM; `>` ends TO if it ends FROM, with the
same meaning; any other token is literal. The results of the server's other functions (partition, split, …) match no
pattern, so configurations could not be adapted: they are refused by name.

Of several maps the first whose FROM matches a subject is used, once; a subject without a match stays.

Subjects of buckets and of MQTT (`$KV.`, `$O.`, `$MQTT.`) are derived by clients from the stream's name: if they were
mapped, clients would not find them. So a wildcard at the beginning of FROM does not match these (as in MQTT it does not
match topics with `$`): only a map that names them maps them, or a bucket's new name (`rename.py`).

A *pattern* (of a stream, of a consumer's filter) can be mapped in two ways:

- `cover`: patterns that match all mapped subjects, for a stream, which may accept more than it holds. A pattern that is
  mapped in part stays, beside the image of that part.
- `select`: patterns that match the mapped subjects of these messages, and no others of the stream, for a filter. There
  may be none: if the mapped part of a pattern is not a pattern, or if the map merges subjects that the filter
  distinguishes. That is a PlanRefused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, takewhile

from jsbackup.errors import PlanRefused, UsageError
from jsbackup.names import BLANKS, is_pattern
from jsbackup.transforms.subjects import check_pattern, contains, intersection, matcher, overlaps, tidy

__all__ = ["UNTOUCHED", "SubjectMap", "SubjectMaps", "is_reserved", "wildcard_of"]

_RESERVED = ("$KV", "$O", "$MQTT")

_PLACE = re.compile(r"\$(\d{1,9})|\{\{\s*[wW]ildcard\s*\(\s*(\d{1,9})\s*\)\s*\}\}", re.ASCII)
_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]{1,40})\s*\(.*\)\s*\}\}", re.ASCII)


def is_reserved(subject: str) -> bool:
    """Return whether a subject, or all that match a pattern, are those of buckets or of MQTT."""
    return subject.partition(".")[0] in _RESERVED


def wildcard_of(token: str) -> int | None:
    """Return which wildcard a token of TO means, counted from 1; None if it is literal.

    Raises UsageError for functions of the server that are not supported, and for malformed ones.
    """
    place = _PLACE.fullmatch(token)
    if place is not None:
        return int(place[1] or place[2])
    function = _FUNCTION.fullmatch(token)
    if function is not None and function[1].lower() != "wildcard":
        raise UsageError(
            f"the mapping function {function[1]} is not supported",
            hint="Only $1 and {{wildcard(1)}} are: streams and consumers could not follow where others lead.",
        )
    if function is not None or "{{" in token or "}}" in token or re.fullmatch(r"\$[+-]\d+", token, re.ASCII):
        raise UsageError(
            f"not a token to map to: {token[:80]!r}", hint="Write $1 or {{wildcard(1)}}, as a whole token."
        )
    return None


@dataclass(frozen=True, slots=True)
class SubjectMap:
    """One map. Construction raises UsageError if the two do not fit together."""

    source: str
    dest: str

    def __post_init__(self) -> None:
        check_pattern("--map-subject", self.source)
        tokens = self.dest.split(".")
        wildcards = [wildcard_of(token) for token in tokens]
        # The server only accepts spaces within {{wildcard(1)}}.
        plain = ".".join("x" if number is not None else token for token, number in zip(tokens, wildcards, strict=True))
        check_pattern("--map-subject", plain)
        have = self.source.split(".").count("*")
        for number in wildcards:
            if number is not None and not 1 <= number <= have:
                raise UsageError(
                    f"--map-subject: {self.source[:80]} has no wildcard number {number}",
                    hint="The wildcards * are counted from 1; > needs no number.",
                )
        if "*" in tokens:
            raise UsageError(
                f"--map-subject: a wildcard in {self.dest[:80]}",
                hint="Say which one it is: $1 is the first * on the left.",
            )
        if (tokens[-1] == ">") != (self.source.split(".")[-1] == ">"):
            raise UsageError(
                f"--map-subject: {self.source[:80]} and {self.dest[:80]} do not both end with >",
                hint="What > stands for is taken over as it is: it ends both sides, or neither.",
            )

    @classmethod
    def parse(cls, text: str) -> SubjectMap:
        """Parse `orders.*.eu=>eu.orders.$1`. Raises UsageError for anything else."""
        source, arrow, dest = text.partition("=>")
        if not arrow or "=>" in dest:
            raise UsageError(
                f"--map-subject: not a map of subjects: {text[:80]!r}",
                hint="Write FROM=>TO, in quotes: 'orders.*=>old.$1'.",
            )
        return cls(source.strip(BLANKS), dest.strip(BLANKS))

    def __str__(self) -> str:
        return f"{self.source}=>{self.dest}"

    @property
    def is_wide(self) -> bool:
        """Whether FROM begins with a wildcard, which does not match reserved subjects."""
        return self.source.partition(".")[0] in ("*", ">")

    def map(self, subject: str) -> str | None:
        """Return the mapped literal subject; None if it does not match. Reserved subjects are not checked here."""
        match = matcher(self.source).fullmatch(subject)
        if match is None:
            return None
        return ".".join([part if isinstance(part, str) else match[part] for part in _template(self.source, self.dest)])

    def substitute(self, tokens: Sequence[str]) -> list[str]:
        """Return the mapped tokens of ones that match FROM; wildcards among them are treated as literal tokens."""
        source = self.source.split(".")
        groups: list[Sequence[str]] = [
            tokens[at:] if token == ">" else tokens[at : at + 1]
            for at, token in enumerate(source)
            if token in ("*", ">")
        ]
        out: list[str] = []
        for part in _template(self.source, self.dest):
            out += [part] if isinstance(part, str) else groups[part - 1]
        return out

    def image(self, pattern: str) -> str:
        """Return the pattern of the mapped subjects of `pattern`, which FROM contains."""
        return ".".join(self.substitute(pattern.split(".")))

    def loss(self, pattern: str) -> str:
        """Return why `image(pattern)` matches more than the mapped subjects of the pattern; "" if it does not."""
        uses = [part for part in _template(self.source, self.dest) if isinstance(part, int)]
        wildcards = [at for at, token in enumerate(self.source.split(".")) if token == "*"]
        for number, at in enumerate(wildcards, start=1):
            token = pattern.split(".")[at]
            if token == "*" and uses.count(number) > 1:
                return f"{self} uses wildcard {number} twice, which no pattern can express"
            if token != "*" and number not in uses:
                return f"{self} drops wildcard {number}, by which {pattern} tells messages apart"
        return ""

    def merges(self, pattern: str) -> bool:
        """Return whether different subjects of `pattern`, which FROM contains, are mapped to the same."""
        uses = _template(self.source, self.dest)
        wildcards = [at for at, token in enumerate(self.source.split(".")) if token == "*"]
        tokens = pattern.split(".")
        return any(tokens[at] == "*" and number not in uses for number, at in enumerate(wildcards, start=1))


@lru_cache(maxsize=1024)
def _template(source: str, dest: str) -> Sequence[str | int]:
    """Return the tokens of TO; a number is a wildcard of FROM, counted from 1, with `>` as the last of them."""
    count = sum(token in ("*", ">") for token in source.split("."))
    parts: list[str | int] = []
    for token in dest.split("."):
        number = count if token == ">" else wildcard_of(token)
        parts.append(token if number is None else number)
    return parts


@dataclass(frozen=True, slots=True)
class SubjectMaps:
    """Maps in order of precedence."""

    maps: tuple[SubjectMap, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> SubjectMaps:
        """Parse the option's texts. Raises UsageError."""
        return cls(tuple(SubjectMap.parse(text) for text in texts))

    def __bool__(self) -> bool:
        return bool(self.maps)

    def map(self, subject: str) -> str:
        """Return the mapped literal subject; itself if no map matches."""
        for subject_map in self._for(subject):
            mapped = subject_map.map(subject)
            if mapped is not None:
                return mapped
        return subject

    @property
    def stage(self) -> list[tuple[bytes, list[bytes | int]]]:
        """The maps as a stage of `kernels.SubjectMapper`."""
        return [
            (
                subject_map.source.encode(),
                [
                    part.encode() if isinstance(part, str) else part
                    for part in _template(subject_map.source, subject_map.dest)
                ],
            )
            for subject_map in self.maps
        ]

    def guarding(self, held: Sequence[str]) -> SubjectMaps:
        """Return these maps, for patterns of a stream that holds what matches `held`.

        A pattern that begins with a wildcard does not show whether reserved subjects match it in this stream.
        """
        tops = [top for top in _RESERVED if any(pattern.partition(".")[0] == top for pattern in held)]
        wide = [at for at, subject_map in enumerate(self.maps) if subject_map.is_wide]
        if not tops or not wide:
            return self
        before, after = self.maps[: wide[0]], self.maps[wide[0] :]
        if all(map(is_reserved, held)):
            return SubjectMaps(before)
        return SubjectMaps((*before, *(SubjectMap(f"{top}.>", f"{top}.>") for top in tops), *after))

    def _for(self, pattern: str) -> Iterator[SubjectMap]:
        """Yield the maps that can apply to what matches a pattern."""
        reserved = is_reserved(pattern)
        return takewhile(lambda subject_map: not (reserved and subject_map.is_wide), self.maps)

    def meets(self, pattern: str) -> bool:
        """Return whether any subject of the pattern is mapped."""
        return any(overlaps(subject_map.source, pattern) for subject_map in self._for(pattern))

    def whole(self, pattern: str) -> SubjectMap | None:
        """Return the map that applies to all of the pattern; None if there is none."""
        first = next((subject_map for subject_map in self._for(pattern) if overlaps(subject_map.source, pattern)), None)
        return first if first is not None and contains(first.source, pattern) else None

    def cover(self, patterns: Sequence[str]) -> Sequence[str]:
        """Return patterns that do not overlap and match the mapped subjects of these patterns."""
        return self._disjoint(tidy(image for pattern in patterns for image, _ in self._pieces(pattern)))

    def select(self, patterns: Sequence[str], subjects: Sequence[str] = (">",)) -> Sequence[str]:
        """Return patterns that do not overlap and match exactly the mapped messages of these patterns.

        `subjects` are those of the stream. They can only match more if a mapped subject existed before (`may_merge`).
        """
        selected: list[str] = []
        for pattern in patterns:
            own = []
            for image, loss in self._pieces(pattern):
                if loss:
                    raise PlanRefused(f"{pattern} cannot follow its messages: {loss}")
                own.append(image)
            selected += own
            for subject_map in self.maps:
                if (
                    contains(pattern, subject_map.source)
                    or subject_map is self.whole(pattern)
                    or subject_map.source == subject_map.dest
                ):
                    continue  # no messages from outside, or none that are not distinguished any more (`loss`)
                theirs = [subject for subject in subjects if not (subject_map.is_wide and is_reserved(subject))]
                arrived = [
                    subject_map.image(part) for subject in theirs if (part := intersection(subject_map.source, subject))
                ]
                if any(overlaps(image, other) for image in arrived for other in own):
                    raise PlanRefused(
                        f"{pattern} cannot follow its messages: {subject_map} would add other subjects to it"
                    )
        return self._disjoint(tidy(selected))

    def may_merge(self, patterns: Sequence[str]) -> str:
        """Return which subjects of a stream with these patterns can become the same, in words; "" if none.

        If only the last messages of each subject are kept (`max_msgs_per_subject`, buckets), that loses messages.
        """
        pieces: list[tuple[str, str]] = []
        for pattern in patterns:
            left = [pattern]
            for subject_map in self._for(pattern):
                both = intersection(subject_map.source, pattern) if left else None
                if both is None:
                    continue
                if subject_map.merges(both):
                    return f"{subject_map} makes one subject of many"
                pieces.append((both, subject_map.image(both)))
                if contains(subject_map.source, pattern):
                    left = []
            pieces += [(rest, rest) for rest in left]
        for (source, image), (other, other_image) in combinations(pieces, 2):
            if overlaps(image, other_image) and not (source == image and other == other_image):
                return f"subjects of {source} and of {other} become the same"
        return ""

    def _pieces(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield patterns that together match the mapped subjects of one, each with the reason why it matches more (""
        if not).
        """
        stays = not any(contains(subject_map.source, pattern) for subject_map in self._for(pattern))
        for subject_map in self._for(pattern):
            both = intersection(subject_map.source, pattern)
            if both is None:
                continue
            image = subject_map.image(both)
            if contains(subject_map.source, pattern):
                yield image, subject_map.loss(both)
                break
            if not contains(pattern, subject_map.source):
                yield image, f"{subject_map} maps a part of it that no pattern can separate"
            elif not (stays and contains(pattern, image)):  # an image within the pattern needs no pattern of its own
                yield image, subject_map.loss(both)
        else:
            yield pattern, ""

    @staticmethod
    def _disjoint(patterns: Sequence[str]) -> Sequence[str]:
        for first, other in combinations(patterns, 2):
            if overlaps(first, other):
                raise PlanRefused(f"{first} and {other} would stand side by side and overlap")
        for pattern in patterns:
            if not is_pattern(pattern):
                raise PlanRefused(f"{pattern[:80]} is not a subject that servers accept")
        return patterns


UNTOUCHED = SubjectMaps()
