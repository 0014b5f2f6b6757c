"""Every finding about one host, of every topic (pure)."""

from __future__ import annotations

from runner.doctor import disks, docker, driver, gpus, memory, shell, ssh, system, venv, worker
from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, in_order

TOPICS = (ssh, shell, docker, driver, gpus, worker, memory, disks, system, venv)
"""A module for each that is judged, or for some that go together."""
_HANGS = {
    "noise": ("shell", "a start-up file of the login shell"),
    "nvidia-list": ("driver", "nvidia-smi"),
    "nvidia": ("driver", "nvidia-smi"),
    "docker": ("docker", "Docker"),
    "info": ("docker", "Docker"),
    "python": ("python", "its Python"),
}


def judge(seen: Seen) -> tuple[Check, ...]:
    """Faults first, each kind in the order in which they bite."""
    checks = [check for each in TOPICS for check in each.judge(seen)]
    stopped = seen.stopped_in
    if stopped is not None and seen.error is None:
        topic, what = _HANGS.get(
            stopped.partition(" ")[0], ("ssh", f"the host ({stopped[:30] or 'its start'})")
        )
        if not any(check.topic == topic and check.state == "fault" for check in checks):
            checks.append(
                fault(
                    "hangs",
                    topic,
                    f"{what} does not answer; what comes after it is not known",
                    "see what hangs there:",
                    "  ps -eo pid,stat,wchan,args | grep ' D'",
                )  # fmt: skip
            )
    return in_order(checks)
