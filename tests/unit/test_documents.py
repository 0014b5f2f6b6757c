from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.app.reports import (
    CancelReport,
    PullReport,
    RankStack,
    StackReport,
    WhyFacts,
    WhyReport,
    WorkerVersion,
)
from runner.app.results import Contact, Curve, Listing, RunOnHost
from runner.model import Host, JobSpec
from runner.show import documents
from runner.show.reasons import explain
from runner.wire import RunStatus

CONTRACT = {
    *("id", "host", "job", "project", "name", "tags", "sweep", "state", "outcome", "cause"),
    *("position", "reason", "submitted_at", "started_at", "ended_at", "attempt", "restarts_left"),
    *("nproc", "gpus", "image", "params", "argv", "snapshot", "step", "metrics", "exit"),
    *("log_bytes", "checkpoints", "contact", "waits", "priority", "after", "time_limit_s", "ran_s"),
    *("stuck", "origin", "secrets"),
}
STATUS = RunStatus(
    id="dqn-7k3fa",
    state="running",
    submitted_at=1_764_600_000.0,
    params={"stop_at": 5, "lr": 1e-3},
    metrics={"reward": float("nan"), "seen_at": 3.0},
    attempts=[{"attempt": 1, "started_at": 1_764_600_001.5, "ended_at": None}],
    argv=["echo", "\udcff"],
)
RUN = RunOnHost(STATUS, Contact("gpu1", "unreachable", 1_764_600_000.0, "no answer", -600.0))


def read(document: Any) -> Any:
    text = documents.text(document)
    assert text.isascii()
    return json.loads(text, parse_constant=lambda name: 1 / 0)


def contact(state: str, at: str) -> dict[str, Any]:
    """A contact of which nothing more is to be told."""
    return {"state": state, "at": at, "worker": None, "replaced": False, "slow": False}


def test_a_run_has_every_name_of_the_contract() -> None:
    body = read(documents.status(RUN))
    assert body["format"] == 1
    assert set(body) >= CONTRACT
    assert body["host"] == "gpu1"
    assert body["contact"] == contact("unreachable", "2025-12-01T14:40:00.000Z")
    assert body["clock_skew_s"] == -600.0


def test_times_are_utc_and_unknown_ones_null() -> None:
    body = read(documents.status(RUN))
    assert (body["submitted_at"], body["ended_at"]) == ("2025-12-01T14:40:00.000Z", None)
    assert body["attempts"][0]["started_at"] == "2025-12-01T14:40:01.500Z"


def test_names_of_a_job_are_no_times_of_ours() -> None:
    body = read(documents.status(RUN))
    assert body["params"] == {"stop_at": 5, "lr": 1e-3}
    assert body["metrics"] == {"reward": None, "seen_at": 3.0}


def test_a_listing_names_its_hosts() -> None:
    body = read(documents.listing(Listing((RUN,), (RUN.contact, Contact("gpu2", at=0.0)))))
    assert [run["id"] for run in body["runs"]] == ["dqn-7k3fa"]
    assert body["hosts"][0]["name"] == "gpu1"
    assert body["hosts"][0]["error"] == "no answer"
    assert body["hosts"][1] == {
        "name": "gpu2",
        "contact": contact("ok", "1970-01-01T00:00:00.000Z"),
        "error": None,
        "clock_skew_s": None,
    }


def test_why_tells_the_same_to_programs() -> None:
    status = RunStatus(
        id="dqn-7k3fa",
        state="queued",
        waits={"kind": "drained", "since_at": 1_764_600_000.0},
        params={"lr": 1e-3},
    )
    other = RunStatus(id="b", state="running", step=3, params={"lr": 1.0})
    item = RunOnHost(status, Contact("gpu1", at=1_764_600_000.0, clock_skew_s=0.5))
    report = WhyReport(item, WhyFacts(others={"b": other}, log=("x\x1b",), interval_s=2.5))
    body = read(documents.why(report, explain(report, 1_764_600_000.0)))
    assert body["facts"].pop("waits") == {"kind": "drained", "since_at": "2025-12-01T14:40:00.000Z"}
    assert body == {
        "format": 1,
        "id": "dqn-7k3fa",
        "host": "gpu1",
        "state": "queued",
        "outcome": None,
        "kind": "drained",
        "text": body["text"],
        "facts": {
            "cause": None,
            "stuck": None,
            "others": [{"id": "b", "state": "running", "outcome": None, "step": 3, "reason": None}],
            "log": ["x\x1b"],
            "log_rank": 0,
            "stack": [],
            "interval_s": 2.5,
            "asked_at": None,
            "grace_s": None,
        },
        "advice": [{"text": "", "command": "runner undrain host=gpu1"}],
        "contact": contact("ok", "2025-12-01T14:40:00.000Z"),
        "clock_skew_s": 0.5,
    }
    assert body["text"].startswith("waits: gpu1 is drained since ")


def test_stacks() -> None:
    report = StackReport("a", "gpu1", (RankStack(0, 7, "main (x.py:1)"),), "py-spy is missing")
    assert read(documents.stack(report)) == {
        "format": 1,
        "run": "a",
        "host": "gpu1",
        "ranks": [{"rank": 0, "pid": 7, "text": "main (x.py:1)"}],
        "problem": "py-spy is missing",
    }


def test_hosts_keep_their_variables_to_themselves() -> None:
    text = documents.text(documents.hosts([Host("gpu1", ssh="gpu1", env={"TOKEN": "s3cr3t"})]))
    assert "s3cr3t" not in text
    assert json.loads(text)["hosts"][0]["env"] == ["TOKEN"]


def test_jobs_tell_types_and_defaults() -> None:
    body = read(documents.jobs([JobSpec("dqn", ("python", "x"), params={"lr": 1e-3, "on": True})]))
    assert body["jobs"][0]["params"] == [
        {"name": "lr", "type": "float", "default": 1e-3},
        {"name": "on", "type": "bool", "default": True},
    ]


def test_the_other_documents() -> None:
    assert read(documents.submitted(["a", "b"], "gpu1"))["runs"][1] == {"id": "b", "host": "gpu1"}
    assert read(documents.pulled(PullReport("a", Path("/r/a"), 1, 2, 0.5, 3)))["path"] == "/r/a"
    assert (
        read(documents.cancelled([CancelReport("a", "gpu1", "cancelled", False)]))["runs"][0][
            "outcome"
        ]
        == "cancelled"
    )
    version = WorkerVersion("gpu1", Contact("gpu1"), {"runner": "0.1.0"})
    assert (
        read(documents.versions({"runner": "0.1.0"}, [version]))["workers"][0]["runner"] == "0.1.0"
    )
    curve = Curve("a", "gpu1", "a", None, ((1, {"reward": float("inf")}),))
    assert read(documents.curves([curve]))["runs"][0]["points"] == [
        {"step": 1, "metrics": {"reward": None}}
    ]
    assert read(documents.made(folder="/x")) == {"format": 1, "folder": "/x"}
