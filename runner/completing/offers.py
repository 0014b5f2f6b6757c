"""What Tab offers at a place: commands, options, keys, values, runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.completing.known import Known, Run
from runner.completing.places import KEYS, Option, Place, place_of
from runner.errors import SpecError
from runner.grammar.changes import FORK_KEYS
from runner.grammar.values import kind_of
from runner.grammar.words import LAUNCHERS, RESERVED, Words
from runner.model import ON_STUCK, Param
from runner.show.units import plural

FILES, FOLDERS = "file", "folder"
_ABOUT = {
    "host": "where it runs",
    "job": "a file in agents/",
    "image": "an image pin",
    "gpus": "cards to lease: auto or a number",
    "nproc": "ranks",
    "launcher": "what starts the ranks",
    "grace": "how long a stopped run may save (25s)",
    "name": "to find it again",
    "tags": "to find it again: a,b",
    "time_limit": "running time in all (12h)",
    "restarts": "how many faults of its own are forgiven",
    "priority": "-1000 to 1000, higher first",
    "after": "starts once these are done",
    "stuck_after": "what counts as stuck (30m)",
    "on_stuck": "what is done then",
    "log_limit": "most bytes of output (1g)",
    "port": "of this machine",
    "tz": "the zone of its times",
    "overlap": "when the last one has not ended",
    "missed": "after the machine was off",
    "code": "which code it trains",
}
_VALUES = {
    "gpus": {"auto": "one per rank where there are any", "0": "none"},
    "launcher": dict.fromkeys(LAUNCHERS, ""),
    "on_stuck": dict.fromkeys(ON_STUCK, ""),
    "overlap": {"skip": "no new run", "queue": "wait for it", "cancel": "cancel it"},
    "missed": {"once": "one run for all", "skip": "none"},
    "code": {"fixed": "that of now", "tree": "the folder as it is then", "git:": "a branch"},
}
_LISTS = ("image", "tags", "after")
"""Keys whose values may be joined by commas."""
_LIVE = ("cancel", "stack", "wait")
_ENDED = ("resume", "rm")
_MOST_READ = 300
"""Runs whose records are read for what is shown beside their ids, the last written first."""
_CHANGES = ("resume", "fork", "reproduce")


@dataclass(frozen=True)
class Offer:
    """One word, whole."""

    text: str
    about: str = ""
    open: bool = False
    """The word goes on; no space follows."""


@dataclass(frozen=True)
class Answer:
    """What is offered for the word at the cursor."""

    offers: Sequence[Offer] = ()
    files: str = ""
    """FILES or FOLDERS: their names, by the shell."""
    skip: int = 0
    """Characters of the word before the file's name begins."""
    hidden: int = 0
    """Characters of the word that need not be shown again in a list."""


def complete(
    program: Any, words: Sequence[str], current: str, known: Known, environ: Iterable[str]
) -> Answer:
    """What fits at the cursor.

    program: Click's group. words: those between the program and the cursor's word. environ: names
    of the caller's variables; their values are not asked for.
    """
    if "--" in words:
        return Answer(files=FILES)
    place, given, option = _walk(program, words)
    if place is None:
        return Answer()
    return _Offers(place, given, known, environ).at(current, option)


def _walk(program: Any, words: Sequence[str]) -> tuple[Place | None, list[str], Option | None]:
    """(the command's place, its words, the option whose value comes next)."""
    command, path = program, ""
    place = place_of(command, path)
    given: list[str] = []
    option: Option | None = None
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-") and word != "-":
            name, sign, _ = word.partition("=")
            found = next((each for each in place.options if name in each.names), None)
            given.append(word)
            option = found if found is not None and found.takes and not sign else None
        elif place.commands:
            if word not in command.commands:
                return None, given, None
            command = command.commands[word]
            path = f"{path} {word}".lstrip()
            place = place_of(command, path)
            given = []
        else:
            given.append(word)
    return place, given, option


class _Offers:
    """What fits after some words of one command."""

    def __init__(
        self, place: Place, given: Sequence[str], known: Known, environ: Iterable[str]
    ) -> None:
        self._place = place
        self._typed = given
        self._given = [word for word in given if not word.startswith("-") or word == "-"]
        self._known = known
        self._environ = environ

    def at(self, current: str, option: Option | None) -> Answer:
        if option is not None:
            return self._option_value(option, current, "")
        name, sign, value = current.partition("=")
        if name.startswith("--") and sign:
            named = next((each for each in self._place.options if name in each.names), None)
            return Answer() if named is None else self._option_value(named, value, name + sign)
        if current.startswith("-"):
            return self._options(current)
        if self._place.commands:
            return _matching(current, self._place.commands)
        answer = self._word(current)
        if not current and not answer.offers and not answer.files:
            return self._options(current)
        return answer

    def _options(self, current: str) -> Answer:
        offers = [
            Offer(name, each.about)
            for each in self._place.options
            if each.again or not set(each.names) & {word.partition("=")[0] for word in self._typed}
            for name in each.names
            if name.startswith("--") or name == current
        ]
        if self._place.command and current in ("-", "--"):
            offers.append(Offer("--", "the job's own command line"))
        return Answer([each for each in offers if each.text.startswith(current)])

    def _option_value(self, option: Option, value: str, prefix: str) -> Answer:
        if option.kind:
            return Answer(files=option.kind, skip=len(prefix))
        if option.several:
            return _prefixed(prefix, _listed(value, dict.fromkeys(option.choices, "")))
        return _prefixed(prefix, _matching(value, dict.fromkeys(option.choices, "")))

    def _word(self, current: str) -> Answer:
        at = len(self._given)
        if at < len(self._place.before):
            return self._of_kind(self._place.before[at], current)
        key, sign, value = current.partition("=")
        if sign and self._place.keys:
            return self._value(key, value)
        offers: list[Offer] = []
        if self._place.rest == "run" and not any("=" in word for word in self._given):
            offers += self._runs(current, several=True)
        if self._place.keys and not (self._place.rest and self._given):
            offers += self._keys(current)
        return Answer(offers)

    def _of_kind(self, kind: str, current: str) -> Answer:
        if kind in (FILES, FOLDERS):
            return Answer(files=kind)
        if kind == "run":
            return Answer(self._runs(current, several=False))
        if kind == "choice":
            return _matching(current, dict.fromkeys(self._place.choices, ""))
        if kind == "host":  # of a file
            hosts = {name: about for name, about in self._known.hosts().items() if name != "local"}
            return _matching(current, hosts)
        named = {"job": self._known.jobs, "schedule": self._known.schedules}
        return _matching(current, named[kind]()) if kind in named else Answer()

    # keys

    def _keys(self, current: str) -> list[Offer]:
        typed = {word.partition("=")[0].removesuffix(":") for word in self._given}
        offers = []
        if KEYS not in self._place.keys:
            offers = [Offer(f"{key}=", _ABOUT.get(key, ""), True) for key in self._place.keys]
        elif self._place.path in _CHANGES:
            offers = self._change_keys()
        else:
            own = [key for key in self._place.keys if key != KEYS]
            offers = [Offer(f"{key}=", _ABOUT.get(key, ""), True) for key in (*own, *RESERVED)]
            offers += [_param_key(name, value) for name, value in self._params().items()]
        if KEYS in self._place.keys:
            offers += self._prefixed_keys(current)
        return [
            each
            for each in offers
            if each.text.startswith(current)
            and each.text.partition("=")[0].removesuffix(":") not in typed
        ]

    def _prefixed_keys(self, current: str) -> list[Offer]:
        """`env.NAME=` and `secret.NAME`, by the names of the variables that are set here."""
        path = self._place.path
        prefix = current.partition(".")[0]
        if "." not in current:
            begun = {"env.": "a variable of the job", "secret.": "your variable of that name"}
            if path == "reproduce":
                del begun["env."]
            if path not in _CHANGES:
                begun["each."] = "with a command: fills in {NAME}"
            return [Offer(text, about, True) for text, about in begun.items()]
        if prefix == "env" and path != "reproduce":
            return [Offer(f"env.{name}=", "", True) for name in self._variables("env")]
        if prefix == "secret":
            return [Offer(f"secret.{name}") for name in self._variables("secret")]
        return []

    def _variables(self, prefix: str) -> list[str]:
        return sorted(name for name in self._environ if _may_be_given(f"{prefix}.{name}"))

    def _change_keys(self) -> list[Offer]:
        run = self._run()
        secrets = [f"secret.{name}" for name in (run.secrets if run else ())]
        offers = [Offer(each, "a secret it had") for each in secrets if _may_be_given(each)]
        if self._place.path == "fork":
            offers += [Offer(f"{key}=", _ABOUT[key], True) for key in FORK_KEYS]
        return offers + [_param_key(name, value) for name, value in self._params().items()]

    def _params(self) -> Mapping[str, Param]:
        """The parameters that may be set here, with the values they have."""
        if self._place.path not in _CHANGES:
            name = next((word[4:] for word in self._given if word.startswith("job=")), None)
            job = None if name is None else self._known.job(name)
            return {} if job is None else job.params
        run = self._run()
        if run is None or self._place.path == "reproduce":
            return {}
        if self._place.path == "fork":
            return run.params
        job = self._known.job(run.job)
        may = job.resumable if job else ()
        return {name: value for name, value in run.params.items() if name in may}

    def _run(self) -> Run | None:
        """The run that the command's first word names."""
        word = self._given[0] if self._given else ""
        found = [each for each in self._known.ids() if word and each.startswith(word)]
        one = word if word in found else found[0] if len(found) == 1 else None
        return next(self._known.runs([one]), None) if one is not None else None

    # values

    def _value(self, key: str, value: str) -> Answer:
        prefix = f"{key}="
        if key.startswith("secret."):
            if value.startswith("@"):
                return Answer(files=FILES, skip=len(prefix) + 1)
            return _prefixed(prefix, Answer([Offer("@", "a file", True)] if not value else []))
        own = key in self._place.keys or (KEYS in self._place.keys and self._takes_reserved(key))
        if own:
            return _prefixed(prefix, self._reserved(key, value))
        name = key.removesuffix(":").removeprefix("param.")
        if KEYS not in self._place.keys or name not in (params := self._params()):
            return Answer()
        return _prefixed(prefix, self._param(name, params[name], value, key.endswith(":")))

    def _takes_reserved(self, key: str) -> bool:
        if self._place.path in _CHANGES:
            return self._place.path == "fork" and key in FORK_KEYS
        return key in RESERVED

    def _reserved(self, key: str, value: str) -> Answer:
        if key == "host":
            return _matching(value, self._known.hosts())
        if key == "job":
            return _matching(value, self._known.jobs())
        if key == "tz":
            zones = self._known.zones(value)
            return Answer([Offer(z, "", z[-1] == "/") for z in zones if z.startswith(value)])
        if key == "gpus" and self._place.path in ("shell", "lab"):
            return Answer()
        if key == "after":
            head, comma, last = value.rpartition(",")
            offers = self._runs(last, several=True, taken=head.split(","), latest=False)
            return _prefixed(head + comma, Answer(offers))
        if key == "name" and KEYS in self._place.keys:
            return _matching(value, self._said_of("name"))
        values: Mapping[str, str] = _VALUES.get(key, {})
        if key == "image":
            values = self._known.images()
        elif key == "tags":
            values = self._said_of("tag")
        if key in _LISTS and KEYS in self._place.keys:
            return _listed(value, values)
        answer = _matching(value, values)
        return replace(
            answer, offers=[replace(o, open=o.text.endswith(":")) for o in answer.offers]
        )

    def _param(self, name: str, default: Param, value: str, is_json: bool) -> Answer:
        if is_json:
            text = json.dumps(default, ensure_ascii=False)
            return _matching(value, {text: "as it is"})
        if isinstance(default, bool):
            told = {"true": "", "false": ""}
            told[str(default).lower()] = "as it is"
            return _matching(value, told)
        if isinstance(default, (list, dict)):
            return Answer()
        if name == "run" and default == "":
            return Answer(self._runs(value, several=False, latest=False, named=False))
        text = str(default)
        told = {text: "as it is"} if text else {}
        job = next((word[4:] for word in self._given if word.startswith("job=")), None)
        if job is not None and isinstance(default, str):
            choices = self._known.choices(job, name)
            told = {**dict.fromkeys(choices, ""), **told} if choices else told
        answer = _matching(value, told)
        is_path = isinstance(default, str) and (not default or "/" in default)
        return replace(answer, files=FILES) if is_path and not answer.offers else answer

    # runs

    def _runs(
        self,
        current: str,
        *,
        several: bool,
        taken: Sequence[str] = (),
        latest: bool = True,
        named: bool = True,
    ) -> list[Offer]:
        """Runs by id, sweeps by theirs, and what else means runs."""
        for kind in ("name", "tag"):
            if named and current.startswith(f"{kind}:"):
                said = self._said_of(kind)
                texts = {f"{kind}:{name}": about for name, about in said.items()}
                return [Offer(*each) for each in texts.items() if each[0].startswith(current)]
        live = not latest or (named and self._place.path in _LIVE)
        ended = named and self._place.path in _ENDED
        ids = [each for each in self._known.ids() if each.startswith(current)]
        seen = {run.id: run for run in self._known.runs(ids[:_MOST_READ])}
        if live or ended:
            wanted = [each for each in ids if each in seen and seen[each].ended == ended]
            ids = wanted or ids
        offers = _ids(ids, seen, current, several)
        if named and latest:
            offers.append(Offer("latest", "the newest of this project"))
        if named:
            offers.append(Offer("name:", "runs of that name", True))
            offers.append(Offer("tag:", "runs with that tag", True))
        gone = {*self._given, *taken}
        return [each for each in offers if each.text.startswith(current) and each.text not in gone]

    def _said_of(self, kind: str) -> dict[str, str]:
        """Names or tags that runs have, the newest first, and of how many."""
        counts: dict[str, int] = {}
        for run in self._known.runs(self._known.ids()):
            for name in run.tags if kind == "tag" else filter(None, [run.name]):
                counts[name] = counts.get(name, 0) + 1
        return {name: plural(count, "run") for name, count in counts.items()}


def _ids(ids: Sequence[str], seen: Mapping[str, Run], current: str, several: bool) -> list[Offer]:
    """Ids that go on from what was typed; a sweep's runs once its id and the dot stand there."""
    offers: dict[str, Offer] = {}
    counts: dict[str, int] = {}
    for each in ids:
        sweep, dot, number = each.rpartition(".")
        if dot and number.isdecimal() and not current.startswith(f"{sweep}."):
            counts[sweep] = counts.get(sweep, 0) + 1
            about = f"{plural(counts[sweep], 'run')} of a sweep"
            offers[sweep] = Offer(sweep if several else f"{sweep}.", about, not several)
        else:
            offers[each] = Offer(each, _about(seen[each]) if each in seen else "")
    return list(offers.values())


def _about(run: Run) -> str:
    where = f" on {run.host}" if run.host else ""
    return run.state + where + (f", {run.name}" if run.name else "")


def _param_key(name: str, value: Param) -> Offer:
    shown = f"param.{name}" if name in RESERVED else name
    sign = ":=" if isinstance(value, (list, dict)) else "="
    return Offer(shown + sign, f"{kind_of(value)}: {json.dumps(value, ensure_ascii=False)}", True)


def _may_be_given(word: str) -> bool:
    """Whether `env.NAME` or `secret.NAME` would be taken."""
    try:
        Words([f"{word}=" if word.startswith("env.") else word])
    except SpecError:
        return False
    return True


def _matching(current: str, named: Mapping[str, str]) -> Answer:
    return Answer([Offer(name, about) for name, about in named.items() if name.startswith(current)])


def _listed(value: str, named: Mapping[str, str]) -> Answer:
    """One more name after the last comma."""
    head, comma, last = value.rpartition(",")
    left = {name: about for name, about in named.items() if name not in head.split(",")}
    return _prefixed(head + comma, _matching(last, left))


def _prefixed(prefix: str, answer: Answer) -> Answer:
    """The same for a word that has this before it."""
    offers = [replace(each, text=prefix + each.text) for each in answer.offers]
    hidden = answer.hidden + len(prefix)
    return Answer(offers, answer.files, answer.skip + len(prefix) * bool(answer.files), hidden)
