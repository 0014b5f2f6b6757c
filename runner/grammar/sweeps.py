"""Sweeps: the values that one word stands for, and the runs that several such words make (pure).

    seed=1..5        1 2 3 4 5: whole numbers, both ends
    lr=1e-3,3e-4     two values; a part may be a range: seed=1..3,10
    seed=1..2 lr=1e-3,3e-4        four runs, in the order typed, the last word changing first
    each.n=1..3 -- ./go {n}       the same for a command: {n} in its words is replaced

A word of one value sweeps nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.errors import SpecError
from runner.fields import said
from runner.grammar.values import INT64, NOTHING_SENT, RANGE, typed_text, whole, word_for
from runner.model import Param

MOST_UNASKED = 1_000
MOST = 100_000


@dataclass(frozen=True)
class Choices:
    """The values of one key, in the order typed; a range is kept as its ends."""

    parts: tuple[str | tuple[int, int], ...]

    @property
    def count(self) -> int:
        """How many they are, which may be more than anybody could list."""
        return sum(1 if isinstance(part, str) else part[1] - part[0] + 1 for part in self.parts)

    def texts(self) -> Iterator[str]:
        """The values as they would be typed one by one."""
        for part in self.parts:
            if isinstance(part, str):
                yield part
            else:
                yield from map(str, range(part[0], part[1] + 1))


@dataclass(frozen=True)
class Member:
    """How one run of a sweep differs from the others."""

    params: Mapping[str, Param] = field(default_factory=dict)
    each: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None


def parse_choices(key: str, text: str, *, is_text: bool = False) -> Choices:
    """The values that `key=text` stands for, one or several. Raises SpecError.

    is_text: the value is any text, so that the way to write a comma is worth telling.
    """
    pieces = text.split(",")
    if len(pieces) > 1 and "" in pieces:
        raise _wrong(key, text, "a value between its commas is empty", is_text)
    parts: list[str | tuple[int, int]] = []
    for piece in pieces:
        ends = RANGE.fullmatch(piece)
        parts.append(piece if ends is None else _range(key, text, piece, is_text))
    return Choices(tuple(parts))


def _range(key: str, text: str, piece: str, is_text: bool) -> tuple[int, int]:
    low, high = (whole(end) for end in piece.split("..", 1))
    if low is None or high is None:
        raise _wrong(key, text, "a..b counts whole numbers; list others with commas", is_text)
    if not (-INT64 <= low < INT64 and -INT64 <= high < INT64):
        raise _wrong(key, text, "a..b takes whole numbers of at most 64 bits", is_text)
    if low > high:
        raise _wrong(key, text, f"a..b counts up: {high}..{low}", is_text)
    return low, high


def _wrong(key: str, text: str, why: str, is_text: bool) -> SpecError:
    advice = ["as one text:", "  " + word_for(key, text, as_json=True)] if is_text else []
    return SpecError(f"{key} is {said(text)}; {why}", *advice, NOTHING_SENT)


def typed_values(key: str, text: str, default: Param) -> Sequence[Param]:
    """The values of a parameter in the type of its default, each once. Raises SpecError."""
    choices = parse_choices(key, text, is_text=isinstance(default, str))
    check_count(choices.count, many=True)
    values = [typed_text(key, each, default) for each in choices.texts()]
    # a seed that is drawn is another one each time
    once = [value for value in values if not (key == "seed" and value == -1)]
    refuse_twice(key, text, once)
    return values


def refuse_twice(key: str, text: str, values: Sequence[Param]) -> None:
    """Raises SpecError where two runs would be the same."""
    seen: set[Param] = set()
    for value in values:
        if value in seen:
            raise SpecError(f"{key} is {said(text)}; {said(value)} is there twice", NOTHING_SENT)
        seen.add(value)


def check_count(count: int, *, many: bool) -> None:
    """Raises SpecError for more runs than a slip of the finger should make."""
    if count > MOST:
        raise SpecError(f"this is a sweep of {count:,} runs; at most {MOST:,}", NOTHING_SENT)
    if count > MOST_UNASKED and not many:
        raise SpecError(
            f"this is a sweep of {count:,} runs; more than {MOST_UNASKED:,} need --yes",
            NOTHING_SENT,
        )


def product(
    swept: Sequence[tuple[str, str, Sequence[Param]]], each: Mapping[str, str], *, many: bool
) -> tuple[Member, ...]:
    """A member for each combination of (param, each or image; name; values). Raises SpecError.

    each: what all of them have alike. Nothing swept: no members.
    """
    count = 1
    for _, _, values in swept:
        count *= len(values)
    check_count(count, many=many)
    if not swept:
        return ()
    members = []
    for combination in itertools.product(*(values for _, _, values in swept)):
        chosen = [(*key[:2], value) for key, value in zip(swept, combination, strict=True)]
        members.append(
            Member(
                {name: value for kind, name, value in chosen if kind == "param"},
                {**each, **{name: str(value) for kind, name, value in chosen if kind == "each"}},
                next((str(value) for kind, _, value in chosen if kind == "image"), None),
            )
        )
    return tuple(members)


def filled(argv: Sequence[str], each: Mapping[str, str]) -> tuple[str, ...]:
    """The words with `{NAME}` replaced for these names; other braces stay as they are."""
    if not each:
        return tuple(argv)
    pattern = re.compile(r"\{(" + "|".join(map(re.escape, each)) + r")\}")
    # in one go: a value may look like another name's place
    return tuple(pattern.sub(lambda match: each[match[1]], word) for word in argv)
