"""The operator with a project whose host `gpu1` is the rig's, behind its jump; two image pins.

The two differ in a library: in `other` cloudpickle says that it is 0.0.1.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from runner.app import cancel, context, runs, status, submit, tail, wait
from runner.app.down import down
from runner.app.provision import provision
from runner.app.reports import DownReport, ProvisionReport
from runner.app.results import RunOnHost
from runner.inventory import read_hosts
from runner.model import Host
from runner.spec import parse_submit
from tests.helpers.local_worker import Heard
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

OTHER = "runner-rig/base:other"
PIN = """
[{name}]
base = "{base}"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
capabilities = []
"""
CHANGED = """FROM {base}
RUN sed -i 's/^__version__.*/__version__ = "0.0.1"/' \\
    $(python3 -c 'import cloudpickle; print(cloudpickle.__file__)')
"""


class Desk:
    """What a person does there, and what is to be seen of it."""

    def __init__(self, operator: Operator, docker: RigEngine) -> None:
        self.operator = operator
        self.docker = docker
        self.heard = Heard()
        pins = {"cpu": docker.base_image, "other": OTHER}
        text = "".join(PIN.format(name=name, base=base) for name, base in pins.items())
        (operator.project / "images.toml").write_text(text)
        self.write()

    def make_other_base(self) -> None:
        """See that the base of `other` is there: one library of the first one's changed."""
        text = CHANGED.format(base=self.docker.base_image)
        self.docker.docker("build", "--tag", OTHER, "-", stdin=text.encode())

    def write(self, name: str = "gpu1", text: str = 'ssh = "rig-gpu"\n', more: str = "") -> None:
        folder = self.operator.project / "hosts"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(f'{text}image = "cpu"\n{more}')

    @property
    def ctx(self) -> context.Context:
        return context.open_context(self.heard, self.operator.project)

    def host(self, name: str = "gpu1") -> Host:
        return read_hosts(self.ctx.project)[name]

    def provision(self, host: str = "gpu1", **options: object) -> ProvisionReport:
        self.heard.notes.clear()
        given = {"image": None, "rebuild": False, **options}
        return provision(self.ctx, host, **given)  # type: ignore[arg-type]

    def down(self, host: str = "gpu1", image: str | None = None, **options: Any) -> DownReport:
        self.heard.notes.clear()
        return down(self.ctx, host, image, **options)

    def submit(self, *words: str, host: str = "gpu1") -> list[str]:
        """`runner submit host=H WORDS -- COMMAND`, `--` among the words."""
        cut = words.index("--")
        request = parse_submit([f"host={host}", *words[:cut]], list(words[cut + 1 :]))
        return submit.submit(self.ctx, request, lambda ids: None)

    def status(self, run: str, host: str = "gpu1") -> RunOnHost:
        return status.status(self.ctx, runs.RunRef(run, host))

    def until(self, run: str, state: str, host: str = "gpu1", limit_s: float = 30.0) -> None:
        wait_for(lambda: self.status(run, host).status.state == state, limit_s, f"{run} {state}")

    def outcomes(self, ids: list[str], host: str = "gpu1", limit_s: float = 90.0) -> list[Any]:
        """How they ended, once all have."""
        found = wait.wait(self.ctx, [runs.RunRef(run, host) for run in ids], limit_s)
        return [run.status.outcome for run in found]

    def log(self, run: str, host: str = "gpu1") -> str:
        pieces: list[bytes] = []
        tail.tail(self.ctx, runs.RunRef(run, host), 0, None, None, False, pieces.append)
        return b"".join(pieces).decode()

    def cancel(self, *ids: str, host: str = "gpu1") -> None:
        order = cancel.Order(now=True)
        cancel.cancel(self.ctx, [runs.RunRef(run, host) for run in ids], order)

    # what Docker has

    def clear(self, host: RigHost) -> None:
        """Nothing of a worker is there: containers, workspaces, the runner's own folder."""
        self.docker.remove_containers()
        for name in ("runner", "third", ".local"):
            shutil.rmtree(host.home / name, ignore_errors=True)

    def inspect(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.docker.docker("inspect", name).stdout)
        return found[0]

    def inside(self, name: str, *argv: str) -> str:
        return self.docker.docker("exec", name, *argv).stdout

    def containers(self) -> dict[str, str]:
        """Names and states of all that are there."""
        listed = self.docker.docker("ps", "-a", "--format", "{{.Names}} {{.State}}").stdout
        return dict(line.split(" ", 1) for line in listed.splitlines())

    def pid_of(self, container: str, words: str) -> str:
        """The pid, as the host numbers it, of the shell in a container that runs these words."""

        def find() -> str:
            top = self.docker.docker("top", container, "-eo", "pid,args").stdout.splitlines()
            found = [row.split() for row in top if words in row]
            return next((row[0] for row in found if row[1].endswith("bash")), "")

        return wait_for(find, 10, f"{words} in {container}")

    def until_ended(self, name: str, limit_s: float = 60.0) -> None:
        """Until a container has left, or is gone."""
        wait_for(
            lambda: self.containers().get(name, "exited") == "exited", limit_s, f"{name} to leave"
        )
