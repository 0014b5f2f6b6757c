"""Host to worker: reads what the host is like, does what the plan says, tries what it made.

Safe to repeat and to break off: an image is named by what goes into it, a half-made container is
replaced, and what is there already is left alone. Nothing but containers with our label is ever
stopped or removed; there is no sudo, no published port, no change to sshd or to anyone's keys.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner import content
from runner.carriers import Completed, Session
from runner.carriers.base import OnLine
from runner.carriers.failures import docker_failure
from runner.errors import Conflict, ProvisionError, SpecError, TimedOut
from runner.host_facts import SCRIPT, HostFacts, parse_facts
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.worker_plan import (
    IMAGES,
    ROOTS_STAND_IN,
    WORKER_LABEL,
    WorkerPlan,
    check_host,
    plan_worker,
)

_ASK_S = 60.0
_PULL_S = 7200.0
"""A base of 9 GB over a slow line; the user sees its progress and may interrupt."""
_BUILD_S = 3600.0
_START_S = 60.0
_PROBE_S = 120.0
"""The first import of torch from a cold disk takes half a minute."""
_SEND = 256 * 1024

_FOLDERS = """
set -eu
umask 077
workspace=$1 leases=$2 state=$3 owner=$4
for folder in "$workspace" "$leases" "$state"; do
    mkdir -p "$folder"
    chmod 0700 "$folder"
    [ -z "$owner" ] || chown "$owner" "$folder"
done
cat > "$state/worker.json.new"
[ -z "$owner" ] || chown "$owner" "$state/worker.json.new"
mv "$state/worker.json.new" "$state/worker.json"
"""
_LIVE_RUNS = """
import glob, json, os
for path in sorted(glob.glob("/workspace/runs/*/state.json")):
    try:
        with open(path) as file:
            state = json.load(file).get("state")
    except (OSError, ValueError, AttributeError):
        continue
    if state in ("starting", "running", "stopping"):
        print(os.path.basename(os.path.dirname(path)))
"""
_PROBE = """
import json, sys
said = {"python": sys.version.split()[0]}
import torch
said["torch"] = torch.__version__
said["built_for"] = torch.version.cuda
said["cuda"] = torch.cuda.is_available()
said["count"] = torch.cuda.device_count() if said["cuda"] else 0
a = torch.arange(256.0).reshape(16, 16)
said["matmul"] = bool(((a @ a) == (a.double() @ a.double()).float()).all())
if said["cuda"]:
    for index in range(said["count"]):
        b = a.to("cuda:%d" % index)
        said["matmul"] = said["matmul"] and bool(torch.allclose((b @ b).cpu(), a @ a, rtol=1e-2))
print("probe " + json.dumps(said))
"""


@dataclass(frozen=True)
class Probe:
    """What the worker's own Python said."""

    python: str
    torch: str
    cuda_gpus: int
    """GPUs torch can compute on."""
    seen_gpus: int
    """GPUs nvidia-smi shows inside the container."""
    matmul: bool
    built_for_cuda: bool
    """Whether this torch could use GPUs at all."""


def read_facts(session: Session, host: Host, pin: ImagePin) -> HostFacts:
    """What the host is like; one round trip. Raises HostError, ProvisionError."""
    cut = f"runner-{secrets.token_hex(8)}"
    words = [cut, worker_key(host), host.workspace, pin.base, IMAGES]
    done = session.run(["sh", "-c", SCRIPT, "runner", *words], timeout_s=_ASK_S)
    try:
        return parse_facts("\n" + done.stdout.decode("utf-8", "replace"), cut)
    except ValueError as error:
        raise ProvisionError(f"{host.name}: {error}", *_said(done)) from error


class Provisioner:
    """Makes one host's worker over one session."""

    def __init__(
        self, session: Session, host: Host, pin: ImagePin, pins: Mapping[str, ImagePin]
    ) -> None:
        self._session = session
        self.host = host
        self.pin = pin
        self._pins = pins
        self._context = content.image_context()

    def read(self) -> HostFacts:
        """The facts, checked: a host where it cannot be done is refused here."""
        facts = read_facts(self._session, self.host, self.pin)
        check_host(self.host, self.pin, self._pins, facts)
        _check_env(self.host)
        return facts

    def pull(self, on_line: OnLine) -> None:
        """Fetches the base image. Raises ProvisionError."""
        done = self._docker(["docker", "pull", self.pin.base], limit_s=_PULL_S, on_line=on_line)
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: could not fetch base image {self.pin.base}", *_said(done)
            )

    def plan(self, facts: HostFacts, *, rebuild: bool) -> WorkerPlan:
        """What is to be made of it."""
        return plan_worker(
            self.host,
            self.pin,
            facts,
            context_digest=hashlib.sha256(self._context).hexdigest(),
            rebuild=rebuild,
            new_worker=f"w-{secrets.token_hex(6)}",
        )

    def refuse_live_runs(self, facts: HostFacts, plan: WorkerPlan) -> None:
        """Raises Conflict when runs would be cut by what the plan does."""
        if facts.container is None or facts.container.status != "running" or not plan.replace:
            return
        runs = live_runs(self._session, self.host, plan.container)
        if runs:
            shown = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
            raise Conflict(
                f"{self.host.name}: runs live there ({shown}); nothing was changed",
                "wait for them, or cancel them, then try again",
            )

    def build(self, plan: WorkerPlan, *, anew: bool, on_line: OnLine) -> None:
        """Builds the image from a context sent over the session. Raises ProvisionError."""
        args = {
            "BASE_IMAGE": self.pin.base,
            "RUNNER_UID": str(plan.uid),
            "RUNNER_GID": str(plan.gid),
            "RUNNER_INPUTS": plan.inputs,
        }
        words = [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
        fresh = ["--no-cache"] if anew else []
        argv = ["docker", "build", *fresh, *words, "--tag", plan.image, "-"]
        done = self._docker(argv, input=_pieces(self._context), limit_s=_BUILD_S, on_line=on_line)
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: the image could not be built", *_said(done, lines=6)
            )

    def write_folders(self, facts: HostFacts, plan: WorkerPlan) -> None:
        """Workspace, leases and worker.json on the host, for the owner alone."""
        owner = "" if facts.uid else f"{ROOTS_STAND_IN}:{ROOTS_STAND_IN}"
        words = [facts.workspace, plan.leases, plan.state_folder, owner]
        done = self._session.run(
            ["sh", "-c", _FOLDERS, "runner", *words],
            input=json.dumps(dict(plan.record), indent=1).encode(),
            timeout_s=_ASK_S,
        )
        if done.status:
            raise ProvisionError(f"{self.host.name}: its folders could not be made", *_said(done))

    def start(self, plan: WorkerPlan) -> None:
        """Takes our old container away, if there is one, and starts the new one."""
        if plan.replace:
            self._remove(plan.container)
        # The variables go through stdin: no value stands in a command line there.
        script = 'cat | exec "$@"'
        argv = [*plan.run_argv[:2], "--env-file=/dev/stdin", *plan.run_argv[2:], plan.image]
        lines = "".join(f"{name}={value}\n" for name, value in self.host.env.items())
        done = self._session.run(
            ["sh", "-c", script, "runner", *argv], input=lines.encode(), timeout_s=_START_S
        )
        if done.status:
            self._remove(plan.container)  # docker leaves one that could not start
            raise docker_failure(self.host.name, done.error_text) or ProvisionError(
                f"{self.host.name}: the container could not be started", *_said(done)
            )

    def probe(self, plan: WorkerPlan) -> Probe:
        """Imports torch in the worker and computes a little. Raises ProvisionError."""
        argv = ["docker", "exec", plan.container, "python3", "-c", _PROBE]
        done = self._docker(argv, limit_s=_PROBE_S)
        said = next(
            (line[6:] for line in done.text.splitlines() if line.startswith("probe ")), None
        )
        if done.status or said is None:
            raise ProvisionError(
                f"{self.host.name}: the worker's Python cannot use torch",
                *_said(done),
                *self._logs(plan),
            )
        body = json.loads(said)
        return Probe(
            python=str(body.get("python")),
            torch=str(body.get("torch")),
            cuda_gpus=int(body.get("count", 0)),
            seen_gpus=self._seen_gpus(plan) if plan.uses_gpus else 0,
            matmul=bool(body.get("matmul")),
            built_for_cuda=body.get("built_for") is not None,
        )

    def _seen_gpus(self, plan: WorkerPlan) -> int:
        done = self._docker(["docker", "exec", plan.container, "nvidia-smi", "-L"], limit_s=_ASK_S)
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: the container does not see the GPUs", *_said(done)
            )
        return sum(line.startswith("GPU ") for line in done.text.splitlines())

    def _logs(self, plan: WorkerPlan) -> list[str]:
        done = self._docker(["docker", "logs", "--tail", "5", plan.container], limit_s=_ASK_S)
        return (done.text + "\n" + done.error_text).strip().splitlines()[-5:]

    def _remove(self, name: str) -> None:
        """Ends and removes a container of that name if it has our label."""
        script = (
            'id=$(docker ps -aq --filter "name=^/?$1\\$" --filter "label=$2") || exit 1; '
            '[ -z "$id" ] || { docker stop --time 20 $id >/dev/null; docker rm -f $id >/dev/null; }'
        )
        done = self._session.run(
            ["sh", "-c", script, "runner", name, WORKER_LABEL], timeout_s=_ASK_S
        )
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: the old container could not be taken away", *_said(done)
            )

    def _docker(
        self,
        argv: Sequence[str],
        *,
        input: Iterator[bytes] | None = None,
        limit_s: float,
        on_line: OnLine | None = None,
    ) -> Completed:
        try:
            return self._session.run(argv, input=input, timeout_s=limit_s, on_line=on_line)
        except TimedOut as error:
            what = " ".join(argv[:2])
            raise ProvisionError(
                f"{self.host.name}: {what} took more than {limit_s:.0f} s"
            ) from error


def live_runs(session: Session, host: Host, container: str) -> list[str]:
    """Ids of the runs that live in a worker's container. Raises ProvisionError if unknown."""
    done = session.run(
        ["docker", "exec", container, "python3", "-I", "-S", "-c", _LIVE_RUNS], timeout_s=_ASK_S
    )
    if done.status:
        raise ProvisionError(
            f"{host.name}: the worker there does not say whether runs live", *_said(done)
        )
    return done.text.split()


def _check_env(host: Host) -> None:
    for name, value in host.env.items():
        if "\n" in value or "\r" in value:
            raise SpecError(
                f"hosts/{host.name}.toml: env.{name} holds a line break; Docker cannot pass it on"
            )


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _SEND):
        yield data[start : start + _SEND]


def _said(done: Completed, *, lines: int = 2) -> list[str]:
    """The end of what a command said, for advice."""
    text = done.error_text or done.text
    found = [line for line in text.splitlines() if line.strip()]
    # Docker 28 without buildx ends each build with this notice
    found = [line for line in found if not line.startswith(("DEPRECATED", "            "))]
    return found[-lines:] or [f"status {done.status}"]
