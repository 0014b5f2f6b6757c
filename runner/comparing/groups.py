"""Runs of one configuration, whatever their seeds, are a group; in what groups differ (pure)."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.wire import RunStatus

SEED = "seed"
_SEED_WORD = re.compile(r"(--?seed|seed)(?:=(.*))?\Z", re.DOTALL)
_WIDE = 1e5
"""A value from 1 to this reads better with its zeros, as 10.0 and not 1e1."""
MOST_MEMBERS = 10_000
"""Of a sweep; a number above says nothing of those below it."""


@dataclass(frozen=True)
class Configuration:
    """All that runs of a group have alike."""

    job: str
    """The job's name; the command line without its seed, where there is none."""
    params: Mapping[str, Any]
    """Without the seed."""
    nproc: int
    image: str | None
    snapshot: str | None
    code: str
    """The code for people: a commit and how much was edited, else the snapshot's digest."""
    pooled: tuple[str, ...] = ()
    """Of a group whose runs have several codes, taken together as asked: these, for people."""


@dataclass(frozen=True)
class Group:
    """A configuration, what tells it from the others, and its runs."""

    label: str
    configuration: Configuration
    runs: tuple[RunStatus, ...]


def seed_of(run: RunStatus) -> str | None:
    """A run's seed as text; None where it has none that can be read."""
    if SEED in run.params:
        return str(run.params[SEED])
    return None if run.job else _split_words(run.argv)[1]


def _split_words(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """A command line without its seed, and that."""
    left: list[str] = []
    seed: str | None = None
    words = iter(map(str, argv))
    for word in words:
        found = _SEED_WORD.match(word)
        if found is None or (found[2] is None and word == SEED):
            left.append(word)
        else:
            seed = found[2] if found[2] is not None else next(words, "")
    return left, seed


def configuration_of(run: RunStatus) -> Configuration:
    """What a run has alike with its group."""
    params = {key: value for key, value in run.params.items() if key != SEED}
    job = run.job or shlex.join(_split_words(run.argv)[0])
    return Configuration(job, params, run.nproc, run.image, run.snapshot, code_text(run))


def code_text(run: RunStatus) -> str:
    """`main@4f2c91a + 2 edited`, or the first digits of the snapshot's digest; "" for neither."""
    commit, edited = run.code.get("commit"), run.code.get("edited")
    if not commit:
        return str(run.snapshot or "")[:12]
    count = len(edited) if isinstance(edited, list) else edited if isinstance(edited, int) else 0
    text = f"{run.code.get('branch') or 'commit'}@{str(commit)[:7]}"
    return f"{text} + {count} edited" if count else text


def _key(found: Configuration) -> str:
    """Equal for equal configurations; 1 and 1.0 are the same value."""
    params = {key: _plain(value) for key, value in found.params.items()}
    body = [found.job, params, found.nproc, found.image, found.snapshot]
    return json.dumps(body, sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def group_runs(runs: Iterable[RunStatus], *, pool_code: bool = False) -> list[Group]:
    """The groups in the order of their first runs, each labelled by what tells it apart.

    pool_code: runs that differ in their code alone are of one group.
    """
    found: dict[str, tuple[Configuration, list[RunStatus]]] = {}
    for run in runs:
        configuration = configuration_of(run)
        key = _key(replace(configuration, snapshot=None) if pool_code else configuration)
        found.setdefault(key, (configuration, []))[1].append(run)
    found = {key: (_pooled(each, members), members) for key, (each, members) in found.items()}
    labels = _labels([configuration for configuration, _ in found.values()])
    return [
        Group(label, configuration, tuple(members))
        for label, (configuration, members) in zip(labels, found.values(), strict=True)
    ]


def _pooled(found: Configuration, members: Sequence[RunStatus]) -> Configuration:
    """The same where all have one code; else with all of them, by which groups can be told apart
    as by one.
    """
    codes = {str(run.snapshot): code_text(run) for run in members}
    if len(codes) < 2:
        return found
    texts = tuple(codes.values())
    if len(set(texts)) < len(texts):  # commits alike, with other edits
        texts = tuple(f"{text} ({snapshot[:7]})" for snapshot, text in codes.items())
    snapshot = " ".join(sorted(codes))
    return replace(found, snapshot=snapshot, code=f"{len(texts)} codes", pooled=texts)


def _labels(found: Sequence[Configuration]) -> list[str]:
    """One for each, no two alike: the job where these differ, parameters, then code and image."""
    parts: list[list[str]] = [[] for _ in found]
    jobs = {each.job for each in found}
    for each, words in zip(found, parts, strict=True):
        words += [each.job] if len(jobs) > 1 else []
        alike = [other for other in found if other.job == each.job]
        words += [
            f"{name}={value_text(each.params[name])}"
            for name in sorted(_varying([other.params for other in alike]))
            if name in each.params
        ]
    facets = [
        [f"nproc={each.nproc}" for each in found],
        [f"code {each.code}" for each in found],
        [f"image {each.image or '-'}" for each in found],
        [f"snapshot {str(each.snapshot or '-')[:12]}" for each in found],
    ]
    for facet in facets:
        before = [tuple(words) for words in parts]
        for i, words in enumerate(parts):
            same = [j for j, other in enumerate(before) if other == before[i]]
            if len({facet[j] for j in same}) > 1:
                words.append(facet[i])
    return ["  ".join(words) or found[i].job for i, words in enumerate(parts)]


def _varying(tables: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names whose values are not the same in all tables."""
    names = {name for table in tables for name in table}
    return {name for name in names if len({value_text(table.get(name)) for table in tables}) > 1}


def value_text(value: Any) -> str:
    """A parameter as it is typed."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        plain = repr(value)
        mantissa, _, power = f"{value:.12e}".partition("e")
        short = f"{mantissa.rstrip('0').rstrip('.')}e{int(power or 0)}"
        wide = 1 <= abs(value) < _WIDE
        return short if len(short) < len(plain) and float(short) == value and not wide else plain
    return json.dumps(value, default=str)


@dataclass(frozen=True)
class Differences:
    """In what two or more configurations differ; parameters by name, with a value for each."""

    jobs: bool
    params: Mapping[str, tuple[Any, ...]]
    nproc: bool
    images: tuple[str, ...]
    codes: tuple[str, ...]
    """Empty where it is the same; two alike differ in what was edited."""


def differences(found: Sequence[Configuration]) -> Differences:
    """What is not the same in all of them. Of another job's parameters only shared ones count."""
    shared = set.intersection(*(set(each.params) for each in found))
    jobs = len({each.job for each in found}) > 1
    names = _varying([each.params for each in found])
    return Differences(
        jobs,
        {
            name: tuple(each.params.get(name) for each in found)
            for name in sorted(names & shared if jobs else names)
        },
        len({each.nproc for each in found}) > 1,
        tuple(dict.fromkeys(str(each.image or "-") for each in found))
        if len({each.image for each in found}) > 1
        else (),
        tuple(each.code for each in found) if len({each.snapshot for each in found}) > 1 else (),
    )


def gaps(runs: Iterable[str]) -> list[str]:
    """Runs that a whole sweep lacks, by the numbers of those that are there: they were deleted."""
    members: dict[str, set[int]] = {}
    for run in runs:
        sweep, _, number = run.rpartition(".")
        if sweep and re.fullmatch(r"[0-9]{1,6}", number):
            members.setdefault(sweep, set()).add(int(number))
    return [
        f"{sweep}.{number}"
        for sweep, there in members.items()
        if len(there) > 1
        for number in range(1, min(max(there), MOST_MEMBERS))
        if number not in there
    ]
