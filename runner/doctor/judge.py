"""Every finding about one host, of every topic (pure)."""

from __future__ import annotations

from runner.doctor import docker, driver, gpus, room, shell, ssh, system, worker
from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, in_order

_HANGS = {
    "noise": ("shell", "a start-up file of the login shell"),
    "nvidia-list": ("driver", "nvidia-smi"),
    "nvidia": ("driver", "nvidia-smi"),
    "docker": ("docker", "Docker"),
    "info": ("docker", "Docker"),
}


def judge(seen: Seen) -> tuple[Check, ...]:
    """Faults first, each kind in the order in which they bite."""
    checks = [
        check for topic in (ssh, shell, docker, driver, gpus, worker, room, system)
        for check in topic.judge(seen)
    ]  # fmt: skip
    stopped = seen.stopped_in
    if stopped is not None and seen.error is None:
        topic, what = _HANGS.get(stopped, ("ssh", f"the host ({stopped[:30] or 'its start'})"))
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
