"""Host to worker: reads what the host is like, does what the plan says, tries what it made.

Safe to repeat and to break off: an image is named by what goes into it, a half-made container is
replaced, and what is there already is left alone. Nothing but containers with our label is ever
stopped or removed; there is no sudo, no published port, no change to sshd or to anyone's keys.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner import content, host_scripts
from runner.build_log import BuildLog
from runner.carriers import Completed, Session
from runner.carriers.base import OnLine
from runner.carriers.failures import NoContainer, docker_failure
from runner.errors import ProvisionError, RunnerError, SpecError, TimedOut
from runner.host_answers import read_facts, said_lines
from runner.host_facts import Container, HostFacts
from runner.model import Host, ImagePin
from runner.worker_options import LIMITS
from runner.worker_plan import ROOTS_STAND_IN, WorkerPlan, check_host, plan_worker

_ASK_S = 60.0
_PULL_S = 7200.0
"""A base of 9 GB over a slow line; the user sees its progress and may interrupt."""
_BUILD_S = 3600.0
_START_S = 60.0
_IDLE_STOP_S = 20
"""How long a container may take to end in which no runs live."""
_PROBE_S = 120.0
"""The first import of torch from a cold disk takes half a minute."""
_SEND = 256 * 1024
_LIMIT_REFUSED = re.compile(r"rlimit.*not permitted", re.IGNORECASE)
"""What runc and crun say where the engine itself may not raise a limit, as one without root."""
_NAME_TAKEN = re.compile(r"is already in use by container", re.IGNORECASE)
_NO_SOURCE = re.compile(r"bind source path does not exist", re.IGNORECASE)
_NO_SUCH_BASE = re.compile(r"manifest unknown|not found|denied|invalid reference", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"timeout|timed out|deadline exceeded|no such host|resolv|network is unreachable|no route"
    r"|connection refused|could not connect|lookup |no matching distribution",
    re.IGNORECASE,
)

_LIVE_RUNS = """
import glob, json, os
place = os.environ.get("RUNNER_PLACE", "")
for path in sorted(glob.glob("/workspace/runs/*/state.json")):
    try:
        with open(path) as file:
            body = json.load(file)
        state, where = body.get("state"), body.get("place") or ""
    except (OSError, ValueError, AttributeError):
        continue
    if state in ("starting", "running", "stopping") and where == place:
        folder = os.path.dirname(path)
        asked = any(os.path.exists(os.path.join(folder, name)) for name in ("cancel", "cancel-now"))
        print(("cancelled " if asked else "live ") + os.path.basename(folder))
"""
PROBE = """
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


class Overtaken(ProvisionError):
    """Somebody else provisions this host at the same time; what is there must be read again."""


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


def parse_probe(text: str) -> Probe | None:
    """What PROBE printed, but for the GPUs that nvidia-smi shows; None when it broke off."""
    said = next((line[6:] for line in text.splitlines() if line.startswith("probe ")), None)
    if said is None:
        return None
    body = json.loads(said)
    return Probe(
        python=str(body.get("python")),
        torch=str(body.get("torch")),
        cuda_gpus=int(body.get("count", 0)),
        seen_gpus=0,
        matmul=bool(body.get("matmul")),
        built_for_cuda=body.get("built_for") is not None,
    )


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
        """Fetches the base image, which is not there. Raises ProvisionError."""
        self._note(f"base {self.pin.base}")
        done = self._docker(["docker", "pull", self.pin.base], limit_s=_PULL_S, on_line=on_line)
        if done.status:
            self._sh(host_scripts.UNNOTE, f"base {self.pin.base}")
            unknown = _NO_SUCH_BASE.search(done.error_text) and not _NO_NETWORK.search(
                done.error_text
            )
            raise ProvisionError(
                f"{self.host.name}: could not fetch base image {self.pin.base}",
                *said_lines(done),
                *([] if unknown else self._way_without_network()),
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

    def live_runs(self, container: Container) -> list[str]:
        """Runs that live in a container of ours; none in one that does not run."""
        if not container.is_up:
            return []
        return [run for run, _ in live_runs(self._session, self.host, container.name)]

    def build(self, plan: WorkerPlan, *, anew: bool, on_line: OnLine) -> BuildLog:
        """Builds the image from a context sent over the session. Raises ProvisionError."""
        self._note(f"image {plan.inputs}")
        args = {
            "BASE_IMAGE": self.pin.base,
            "RUNNER_UID": str(plan.uid),
            "RUNNER_GID": str(plan.gid),
            "RUNNER_INPUTS": plan.inputs,
        }
        words = [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
        fresh = ["--no-cache"] if anew else []
        argv = ["docker", "build", *fresh, *words, "--tag", plan.image, "-"]
        log = BuildLog()

        def on_both(line: str) -> None:
            log.feed(line, time.monotonic())
            on_line(line)

        done = self._docker(argv, input=_pieces(self._context), limit_s=_BUILD_S, on_line=on_both)
        if done.status:
            offline = _NO_NETWORK.search(done.text + done.error_text)
            raise ProvisionError(
                f"{self.host.name}: the image could not be built",
                *said_lines(done, lines=6),
                *(self._way_without_network(plan.image) if offline else []),
            )
        return log

    def write_folders(self, facts: HostFacts, plan: WorkerPlan) -> None:
        """Workspace, leases, keys and worker.json on the host, for the owner alone.

        Raises Overtaken when somebody else makes this generation.
        """
        owner = "" if facts.uid else f"{ROOTS_STAND_IN}:{ROOTS_STAND_IN}"
        words = [facts.workspace, plan.state_name, owner]
        done = self._sh(
            host_scripts.FOLDERS,
            *words,
            input=json.dumps(dict(plan.record), indent=1).encode(),
        )
        if done.status == host_scripts.TAKEN:
            raise Overtaken(f"{self.host.name}: somebody else provisions it")
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: its folders could not be made", *said_lines(done)
            )

    def start(self, plan: WorkerPlan) -> None:
        """Starts the new container; the one that has its name steps aside, and stays what it was
        where the new one cannot be started.

        Raises Overtaken, ProvisionError.
        """
        current = plan.current
        if current is None or not current.is_up:
            self.remove([] if current is None else [current.id])
            self._run(plan)
            return
        if self._sh(host_scripts.ASIDE, current.id, plan.old_name).status:
            raise Overtaken(f"{self.host.name}: somebody else replaces {plan.container}")
        try:
            self._run(plan)
        except RunnerError:
            self._sh(host_scripts.BACK, current.id, plan.container)
            raise

    def _run(self, plan: WorkerPlan) -> None:
        # The variables go through stdin: no value stands in a command line there.
        argv = [*plan.run_argv[:2], "--env-file=/dev/stdin", *plan.run_argv[2:], plan.image]
        done = self._start(argv)
        if done.status and _LIMIT_REFUSED.search(done.error_text):
            self._remove_half_made(plan)
            done = self._start([word for word in argv if word not in LIMITS])
        if not done.status:
            return
        failure = docker_failure(self.host.name, done.error_text)
        if _NAME_TAKEN.search(done.error_text) or isinstance(failure, NoContainer):
            raise Overtaken(f"{self.host.name}: somebody else makes {plan.container}")
        self._remove_half_made(plan)
        if _NO_SOURCE.search(done.error_text) and f"/{plan.state_name}" in done.error_text:
            # its folder was taken for that of a provision that was cut
            raise Overtaken(f"{self.host.name}: somebody else makes {plan.container}")
        raise failure or ProvisionError(
            f"{self.host.name}: the container could not be started", *said_lines(done)
        )

    def _start(self, argv: Sequence[str]) -> Completed:
        lines = "".join(f"{name}={value}\n" for name, value in self.host.env.items())
        return self._sh('cat | exec "$@"', *argv, input=lines.encode(), limit_s=_START_S)

    def _remove_half_made(self, plan: WorkerPlan) -> None:
        """Docker leaves what could not start; its generation tells ours from others'."""
        labels = [word for word in plan.run_argv if word.startswith("org.runner.")]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        found = self._docker(["docker", "ps", "-aq", *filters], limit_s=_ASK_S)
        if found.text:
            self.remove(found.text.split())

    def has_ended(self, container: Container) -> bool:
        """Whether a container runs no more."""
        argv = ["docker", "container", "inspect", "--format", "{{.State.Running}}", container.id]
        done = self._docker(argv, limit_s=_ASK_S)
        return done.text != "true"

    def remove(self, ids: Sequence[str]) -> None:
        """Ends and removes containers of ours. Raises ProvisionError."""
        if ids:
            remove_containers(self._session, self.host, ids)

    def forget(self, plan: WorkerPlan, old: Container) -> None:
        """Takes away a container that was replaced, and its folder."""
        self.remove([old.id])
        self._sh(host_scripts.TIDY, f"{plan.container}.{old.generation}")

    def tidy(self, plan: WorkerPlan) -> None:
        """Takes away what of earlier workers nobody needs, and sets right what a cut left wrong."""
        for container, policy in plan.mend:
            self._docker(["docker", "update", f"--restart={policy}", container], limit_s=_ASK_S)
        self.remove([each.id for each in plan.leftovers])
        if plan.stale:
            self._sh(host_scripts.TIDY, *plan.stale)

    def probe(self, plan: WorkerPlan) -> Probe:
        """Imports torch in the worker and computes a little. Raises ProvisionError."""
        argv = ["docker", "exec", plan.container, "python3", "-c", PROBE]
        done = self._docker(argv, limit_s=_PROBE_S)
        probe = parse_probe(done.text)
        if done.status or probe is None:
            raise ProvisionError(
                f"{self.host.name}: the worker's Python cannot use torch",
                *said_lines(done),
                *self._logs(plan),
            )
        seen = self._seen_gpus(plan) if plan.uses_gpus else 0
        return dataclasses.replace(probe, seen_gpus=seen)

    def _seen_gpus(self, plan: WorkerPlan) -> int:
        done = self._docker(["docker", "exec", plan.container, "nvidia-smi", "-L"], limit_s=_ASK_S)
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: the container does not see the GPUs", *said_lines(done)
            )
        return sum(line.startswith("GPU ") for line in done.text.splitlines())

    def _logs(self, plan: WorkerPlan) -> list[str]:
        done = self._docker(["docker", "logs", "--tail", "5", plan.container], limit_s=_ASK_S)
        return (done.text + "\n" + done.error_text).strip().splitlines()[-5:]

    def _way_without_network(self, image: str | None = None) -> list[str]:
        """How a host gets what it cannot fetch: its base, and an image that was built elsewhere."""
        names = " ".join(shlex.quote(name) for name in (self.pin.base, image) if name)
        jump = f"-J {shlex.quote(self.host.jump)} " if self.host.jump else ""
        load = f"docker save {names}"
        if self.host.ssh not in (None, "local"):
            load += f" | ssh {jump}{shlex.quote(str(self.host.ssh))} docker load"
        where = "a machine that has both" if image else "one that has it"
        return [
            f"where the host has no network, bring it there from {where}, then provision again:",
            f"  {load}",
        ]

    def _note(self, *lines: str) -> None:
        done = self._sh(host_scripts.NOTE, *lines)
        if done.status:
            raise ProvisionError(
                f"{self.host.name}: nothing can be written in its home", *said_lines(done)
            )

    def _sh(
        self, script: str, *words: str, input: bytes | None = None, limit_s: float = _ASK_S
    ) -> Completed:
        return self._docker(
            ["sh", "-c", script, "runner", *words],
            input=None if input is None else iter([input]),
            limit_s=limit_s,
            what="a step there",
        )

    def _docker(
        self,
        argv: Sequence[str],
        *,
        input: Iterator[bytes] | None = None,
        limit_s: float,
        on_line: OnLine | None = None,
        what: str | None = None,
    ) -> Completed:
        try:
            return self._session.run(argv, input=input, timeout_s=limit_s, on_line=on_line)
        except TimedOut as error:
            raise ProvisionError(
                f"{self.host.name}: {what or ' '.join(argv[:2])} took more than {limit_s:.0f} s"
            ) from error


def remove_containers(
    session: Session, host: Host, ids: Sequence[str], *, limit_s: int = _IDLE_STOP_S
) -> None:
    """Ends and removes containers, each of which may take so long. Raises ProvisionError."""
    argv = ["sh", "-c", host_scripts.REMOVE, "runner", str(limit_s), *ids]
    done = session.run(argv, timeout_s=_ASK_S + (limit_s + 20) * len(ids))
    if done.status:
        raise ProvisionError(f"{host.name}: a container could not be taken away", *said_lines(done))


def live_runs(session: Session, host: Host, container: str) -> list[tuple[str, bool]]:
    """(id, whether it was cancelled) of the runs that live in a worker's container.

    Raises ProvisionError if that cannot be known.
    """
    done = session.run(
        ["docker", "exec", container, "python3", "-I", "-S", "-c", _LIVE_RUNS], timeout_s=_ASK_S
    )
    if done.status:
        raise ProvisionError(
            f"{host.name}: the worker there does not say whether runs live", *said_lines(done)
        )
    rows = (line.partition(" ") for line in done.text.splitlines())
    return [(run, kind == "cancelled") for kind, _, run in rows]


def _check_env(host: Host) -> None:
    for name, value in host.env.items():
        if "\n" in value or "\r" in value:
            raise SpecError(
                f"hosts/{host.name}.toml: env.{name} holds a line break; Docker cannot pass it on"
            )


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _SEND):
        yield data[start : start + _SEND]
