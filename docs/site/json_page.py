"""The reference of what `--json` prints: documents made of samples by the code that makes them."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from marks import plain, table
from shapes import Row, document_rows, sample

from runner.app import reports, results, schedule, space
from runner.comparing import comparison
from runner.doctor import findings
from runner.model import Host, JobSpec
from runner.schedule.definition import Fired, Schedule
from runner.schedule.instants import Firing
from runner.show import advice, compare, doctor, documents, live, notify, schedules, tables
from runner.wire import RunStatus

COMMANDS = Path(__file__).resolve().parents[2] / "runner/commands"
HEAD = """\
# JSON

`--json` prints one document, with `format` 1. Times are RFC 3339 in UTC, by the worker's clock;
`clock_skew_s` is theirs minus ours. Readers ignore keys they do not know. Numbers that JSON cannot
hold (nan) are null. What it is about: [commands](../commands.md#json).
"""
KIND = (
    "`kind`: what a queued run waits for (`order gpus slot after drained disk pause queued`), how a"
    " live one goes (`starting running stuck stopping`), or the kind of the cause of its end"
    " (`done` for none)."
)
INDEX = (
    "`better` and `than` count the groups from 0; an interval is null where seeds are too few, and"
    " `snapshot` in a group of several codes."
)
TOP = (
    "`runs`: each as above, also with these; of a host that gave no answer all but the first four"
    " keys are null, or hold nulls. `live` and `queued` count runs of all projects."
)
CHECKS = "A check's `state` is ok, note, fault or skipped: [doctor](../doctor.md)."
NOTIFY = {
    "on": ["ended"],
    "webhook": {"url": "https://x.test/", "format": "json", "headers": {"NAME": "x"}},
    "command": {"argv": ["text"]},
    "heartbeat": {"url": "https://x.test/", "every_s": 1.5},
}
FUNCTIONS = {
    "host_add": "host add",
    "host_rekey": "host rekey",
    "host_remove": "host remove",
    "job_add": "job add",
    "ssh_config": "ssh-config",
    "_stop": "lab --stop, tensorboard --stop",
    "on_ready": "lab, tensorboard",
    "plot": "plot --out",
    "compare": "compare --out",
    "pause": "schedule pause",
    "remove": "schedule remove",
}
"""Functions of runner/commands/ whose command has another name."""


def json_page() -> list[str]:
    """Every document that `--json` prints."""
    lines = HEAD.split("\n")
    for title, text, rows in _documents():
        lines += [f"## {title}", "", text, ""]
        told = ((f"`{key}`", kind, null(text)) for key, kind, text in rows if key != "format")
        lines += table(("key", "type", "means"), told)
    lines += ["## What makes something", "", "Beside `format`, other commands print:", ""]
    return [*lines, *table(("command", "keys"), sorted(_made_keys()))]


def null(text: str) -> str:
    """The text below a field, for readers of JSON."""
    return plain(text.replace("None", "null"))


def _documents() -> Iterable[tuple[str, str, list[Row]]]:
    """Title, a sentence, rows."""
    yield (
        "A run",
        "What `status` prints, and what stands in the lists of `ps` and `wait`.",
        document_rows(documents.status(sample(results.RunOnHost)), RunStatus, results.RunOnHost),
    )
    listing = {**documents.listing(sample(results.Listing)), "runs": []}
    yield "ps, wait", "`runs`: each as above.", document_rows(listing)
    watched = live.document(sample(reports.Top))
    watched["runs"] = [{"steps_per_s": 1.5, "left_s": 1.5}]
    yield "top", TOP, document_rows(watched, reports.Card)
    why = documents.why(sample(reports.WhyReport), sample(advice.Reason))
    yield "why", KIND, document_rows(why, reports.WhyFacts, RunStatus)
    found = documents.stack(sample(reports.StackReport))
    yield "stack", "", document_rows(found, reports.StackReport, reports.RankStack)
    made = documents.submitted(["dqn-7k3fa"], "gpu1")
    yield "submit, resume, fork, reproduce, schedule run", "", document_rows(made)
    dry = documents.dry_run(sample(reports.DryRun))
    yield "submit --dry-run", "", document_rows(dry, reports.DryRun, reports.LocalPart)
    pulled = documents.pulled(sample(reports.PullReport))
    several = "A document for each run; with `--watch` at the end."
    yield "pull", several, document_rows(pulled, reports.PullReport)
    cancelled = documents.cancelled([sample(reports.CancelReport)])
    yield "cancel", "", document_rows(cancelled, reports.CancelReport)
    yield "plot", "", document_rows(documents.curves([sample(results.Curve)]), results.Curve)
    compared = compare.document(sample(reports.CompareReport))
    compared["groups"][0]["snapshot"] = "text"
    yield "compare", INDEX, document_rows(compared, comparison.Comparison, comparison.Seed)
    yield "jobs", "", document_rows(documents.jobs([sample(JobSpec)]), JobSpec)
    hosts = documents.hosts([sample(Host)])
    yield "host list", "Values of `[env]` are left out.", document_rows(hosts, Host)
    health = doctor.document([sample(findings.HostHealth)])
    yield "doctor", CHECKS, document_rows(health, findings.HostHealth, findings.Check)
    heard = notify.document(dataclasses.replace(sample(reports.NotifyReport), settings=NOTIFY))
    yield "notify, notify test", "", document_rows(heard, reports.Delivery)
    yield from _of_hosts()


def _of_hosts() -> Iterable[tuple[str, str, list[Row]]]:
    taken = tables.space_document(sample(reports.SpaceListing))
    taken["hosts"][0]["shared"] = {f"{name}_bytes": 1 for name in space.SHARED}
    yield "du", "", document_rows(taken, reports.RunSpace)
    gone = tables.removal_document([sample(reports.Removal)], dry=True)
    yield "rm", "", document_rows(gone, reports.Removal)
    garbage = tables.garbage_document(sample(reports.Garbage))
    yield "gc", "", document_rows(garbage, reports.Garbage)
    drained = tables.drained_document(sample(reports.Drained))
    yield "drain, undrain", "", document_rows(drained, reports.Drained)
    client = {"runner": "0.1", "python": "3.12"}
    versions = documents.versions(client, [sample(reports.WorkerVersion)])
    rest = "A worker's other keys are what it says of itself."
    yield "version", rest, document_rows(versions, reports.WorkerVersion)
    ready = documents.made(**vars(sample(reports.ProvisionReport)))
    yield "provision", "", document_rows(ready, reports.ProvisionReport)
    away = documents.made(**vars(sample(reports.DownReport)))
    yield "down", "", document_rows(away, reports.DownReport)
    listed = schedules.list_document([sample(schedule.Seen)])
    yield "schedule list", "", document_rows(listed, Schedule, Fired)
    nightly = Schedule("nightly", "key", "/p", "p-1", "30 2 * * *", "UTC")
    times = schedules.next_document(nightly, [Firing(1.0, "2027-03-27 02:30")])
    yield "schedule next, add, resume, update", "", document_rows(times, Schedule)


def _made_keys() -> Iterable[tuple[str, str]]:
    """Commands and the keys they hand to Output.made, as they are written."""
    for path in sorted(COMMANDS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for keys in _made_in(node):
                    name = FUNCTIONS.get(node.name, node.name)
                    yield f"`{name}`", " ".join(f"`{key}`" for key in keys)


def _made_in(function: ast.FunctionDef) -> Iterable[Sequence[str]]:
    """The keywords of each call of `.made(` in a function, but not in one inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop(0)
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "made":
            keys = [word.arg for word in node.keywords if word.arg]
            if keys:
                yield keys
        stack += ast.iter_child_nodes(node)
