"""The documents `--json` prints (pure): one object each, `format` 1, times RFC 3339 in UTC.

A run: id host job project name tags sweep state outcome cause position reason waits{kind, …}
submitted_at started_at ended_at attempt restarts_left priority after[] time_limit_s ran_s
stuck{since_at, action} origin{kind, run, checkpoint} secrets[] nproc gpus[] image params{} given[]
argv[] snapshot code{} metric step metrics{} progress_at exit{} log_bytes log_cut_bytes log_problem
checkpoints[] bad_checkpoints[] attempts[] pulled contact{state, at, worker, replaced, slow}
clock_skew_s. Its times are the worker's, `contact.at` is ours; the skew is theirs minus ours.
`contact.worker` is the id of the worker that answered, `replaced` that it was another one the last
time, `slow` that it was not waited for any longer. `ran_s` counts attempts that have ended;
`secrets` are names.

`why`: id host state outcome kind text facts{} advice[{text, command}]. `kind` is what a queued run
waits for (order gpus slot after drained disk pause queued), how a live one goes (starting running
stuck stopping), or the kind of the cause of its end (`done` for none). `facts`: waits cause stuck
others[{id, state, outcome, step, reason}] log[] log_rank stack[] interval_s asked_at grace_s.

`status` gives one run with `format` beside its keys. Lists are {"format", "runs", "hosts"}; a host
there is {"name", "contact": {"state", "at"}, "error", "clock_skew_s"}. Readers ignore keys they do
not know. Numbers JSON cannot hold (nan) are null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.results import Contact, Curve, Listing, RunOnHost
from runner.fields import type_name
from runner.model import Host, JobSpec
from runner.show.advice import Reason
from runner.show.units import rfc3339

if TYPE_CHECKING:
    from runner.app.reports import (
        CancelReport,
        DryRun,
        PullReport,
        StackReport,
        WhyReport,
        WorkerVersion,
    )

FORMAT = 1


def text(document: Mapping[str, Any]) -> str:
    """The document as it is printed: ASCII, so that no terminal or locale changes it."""
    return json.dumps(_safe(document), indent=1, ensure_ascii=True, allow_nan=False)


def _safe(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _with_times(value: Any, key: str = "") -> Any:
    """The value with every `…_at` in it written as a time."""
    if isinstance(value, Mapping):
        return {name: _with_times(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_times(item) for item in value]
    is_time = (
        key.endswith("_at") and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    return rfc3339(value) if is_time else value


def contact(seen: Contact) -> dict[str, Any]:
    """`{"state", "at", "worker", "replaced", "slow"}`."""
    return {
        "state": seen.state,
        "at": rfc3339(seen.at),
        "worker": seen.worker,
        "replaced": seen.replaced,
        "slow": seen.slow,
    }


def run(item: RunOnHost) -> dict[str, Any]:
    """One run."""
    body = item.status.to_json()
    # Names of parameters and metrics are the job's: none of them is a time of ours.
    kept = {key: body.pop(key) for key in ("params", "metrics")}
    document: dict[str, Any] = {"id": body.pop("id"), "host": item.host}
    document.update(_with_times(body))
    document.update(kept)
    document["pulled"] = item.pulled
    document["contact"] = contact(item.contact)
    document["clock_skew_s"] = item.contact.clock_skew_s
    return document


def status(item: RunOnHost) -> dict[str, Any]:
    """What `status` prints."""
    return {"format": FORMAT, **run(item)}


def why(report: WhyReport, reason: Reason) -> dict[str, Any]:
    """What `why` prints."""
    told, facts = report.run.status, report.facts
    others = [
        {key: getattr(other, key) for key in ("id", "state", "outcome", "step", "reason")}
        for other in facts.others.values()
    ]
    table = {
        "waits": told.waits,
        "cause": told.cause,
        "stuck": told.stuck,
        "others": others,
        "log": list(facts.log),
        "log_rank": facts.log_rank,
        "stack": list(facts.stack),
        "interval_s": facts.interval_s,
        "asked_at": facts.asked_at,
        "grace_s": facts.grace_s,
    }
    return {
        "format": FORMAT,
        "id": told.id,
        "host": report.run.host,
        "state": told.state,
        "outcome": told.outcome,
        "kind": reason.kind,
        "text": reason.text,
        "facts": _with_times(table),
        "advice": [{"text": item.text, "command": item.command} for item in reason.advice],
        "contact": contact(report.run.contact),
        "clock_skew_s": report.run.contact.clock_skew_s,
    }


def stack(report: StackReport) -> dict[str, Any]:
    """What `stack` prints."""
    return {"format": FORMAT, **dataclasses.asdict(report)}


def listing(found: Listing) -> dict[str, Any]:
    """What `ps` and `wait` print."""
    return {
        "format": FORMAT,
        "runs": [run(item) for item in found.runs],
        "hosts": [host_contact(item) for item in found.hosts],
    }


def host_contact(seen: Contact) -> dict[str, Any]:
    return {
        "name": seen.host,
        "contact": contact(seen),
        "error": seen.error,
        "clock_skew_s": seen.clock_skew_s,
    }


def submitted(ids: Iterable[str], host: str) -> dict[str, Any]:
    """What `submit` prints."""
    return {"format": FORMAT, "runs": [{"id": run_id, "host": host} for run_id in ids]}


def dry_run(report: DryRun) -> dict[str, Any]:
    """What `submit --dry-run` prints."""
    return {
        "format": FORMAT,
        "host": report.host,
        "files": [dataclasses.asdict(file) for file in report.files],
        "left_out": [{"path": item.path, "rule": item.rule} for item in report.left_out],
        "code": dict(report.code),
        "warnings": list(report.warnings),
        "runs": len(report.specs),
        "specs": [dict(spec) for spec in report.specs],
    }


def hosts(found: Iterable[Host]) -> dict[str, Any]:
    """What `host list` prints; values of environment variables are left out."""
    rows = []
    for host in found:
        row = dataclasses.asdict(host)
        row["env"] = sorted(host.env)
        rows.append(row)
    return {"format": FORMAT, "hosts": rows}


def jobs(found: Iterable[JobSpec]) -> dict[str, Any]:
    """What `jobs` prints."""
    rows = []
    for job in found:
        row: dict[str, Any] = dataclasses.asdict(job)
        row["pass"] = row.pop("how")
        row["params"] = [
            {"name": key, "type": type_name(value), "default": value}
            for key, value in job.params.items()
        ]
        rows.append(row)
    return {"format": FORMAT, "jobs": rows}


def pulled(report: PullReport) -> dict[str, Any]:
    """What `pull` prints."""
    return {"format": FORMAT, **dataclasses.asdict(report)}


def cancelled(reports: Iterable[CancelReport]) -> dict[str, Any]:
    """What `cancel` prints."""
    return {"format": FORMAT, "runs": [dataclasses.asdict(report) for report in reports]}


def versions(client: Mapping[str, Any], workers: Iterable[WorkerVersion]) -> dict[str, Any]:
    """What `version` prints."""
    rows = [
        {**host_contact(worker.contact), "name": worker.host, **worker.facts} for worker in workers
    ]
    return {"format": FORMAT, "client": dict(client), "workers": rows}


def curves(found: Iterable[Curve]) -> dict[str, Any]:
    """What `plot` prints."""
    rows = [
        {
            "run": curve.run,
            "host": curve.host,
            "metric": curve.metric,
            "points": [{"step": step, "metrics": dict(metrics)} for step, metrics in curve.points],
        }
        for curve in found
    ]
    return {"format": FORMAT, "runs": rows}


def made(**facts: Any) -> dict[str, Any]:
    """What a command that makes something prints."""
    return {"format": FORMAT, **facts}
