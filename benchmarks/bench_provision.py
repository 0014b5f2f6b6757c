"""From a bare Debian host over SSH to the first log line of a DQN run; and provisioning it again.

    python benchmarks/bench_provision.py

On the test rig (as root): its Docker has neither base nor worker when it begins. The base is
brought as to a host without a network, by `docker load` over ssh through the jump; a registry over
a slow line would take longer, and the base of the tests is smaller than PyTorch's own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import readings  # noqa: E402
from readings import Reading  # noqa: E402

from runner.app.context import open_context  # noqa: E402
from runner.carriers import open_session  # noqa: E402
from runner.inventory import find_image  # noqa: E402
from runner.provisioner import Provisioner  # noqa: E402
from tests.helpers.pinned import pin_base  # noqa: E402
from tests.rig.operator import Operator  # noqa: E402
from tests.rig.rig import Rig, say  # noqa: E402

LIMIT_S = 600.0


class Silent:
    """A report that says nothing."""

    def note(self, text: str) -> None:
        pass

    step = warn = note

    def done(self) -> None:
        pass


class Bench:
    """The operator, and the host that is made bare."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.engine = rig.engine
        self.folder = folder
        self.operator = Operator(rig, folder / "operator")

    def runner(self, *words: str, tool: Path = ROOT) -> str:
        done = self.operator.runner(*words, limit_s=LIMIT_S, env={"PYTHONPATH": str(tool)})
        if done.returncode:
            sys.exit(f"runner {' '.join(words)}: {done.stderr.decode()}")
        return done.stdout.decode()

    def provision(self, *, tool: Path = ROOT) -> Mapping[str, Any]:
        said: Mapping[str, Any] = json.loads(
            self.runner("provision", "host=gpu1", "--json", tool=tool)
        )
        return said

    def make_bare(self) -> Path:
        """Take away all, the base too; where the base is kept."""
        self.engine.reset()
        for name in ("runner", ".local"):
            shutil.rmtree(self.rig.gpu.home / name, ignore_errors=True)
        tar = self.folder / "base.tar"
        self.engine.docker("image", "save", "-o", tar, self.engine.base_image, limit_s=LIMIT_S)
        self.engine.docker("image", "rm", "-f", self.engine.base_image, limit_s=LIMIT_S)
        return tar

    def first_line(self) -> tuple[float, float]:
        """Seconds from the words to the id, and to the first byte that the job said."""
        began = time.monotonic()
        argv = [sys.executable, "-m", "runner", "submit", "host=gpu1", "job=dqn", "steps=2000"]
        env = {**self.operator.env, "PYTHONPATH": str(ROOT)}
        (run,) = subprocess.run(
            argv, cwd=self.operator.project, env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
        queued_s = time.monotonic() - began
        tail = self.operator.popen(
            [sys.executable, "-m", "runner", "tail", run], stdout=subprocess.PIPE, env=env
        )
        assert tail.stdout is not None
        line = tail.stdout.readline()
        first_s = time.monotonic() - began
        tail.kill()
        tail.wait()
        assert line, "the run said nothing"
        self.runner("wait", run)
        return queued_s, first_s

    def build_for_another_uid(self) -> tuple[float, int, int]:
        """Seconds and layers (made, from before) of the image for the next uid."""
        ctx = open_context(Silent(), self.operator.project)
        host, pin = ctx.host("gpu1"), find_image(ctx.images, "cpu")
        with open_session(host) as session:
            maker = Provisioner(session, host, pin, ctx.images)
            plan = maker.plan(maker.read(), rebuild=False)
            other = dataclasses.replace(plan, uid=plan.uid + 1, image=f"{plan.image}-uid")
            began = time.monotonic()
            log = maker.build(other, anew=False, on_line=lambda line: None)
            return time.monotonic() - began, log.built, log.cached

    def tool_with_another_requirement(self) -> Path:
        """A copy of the runner whose image asks for one package more, which the base has."""
        tool = self.folder / "tool"
        for part in ("runner", "provisioning", "agents", "hosts"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, tool / part, ignore=ignored)
        shutil.copy(ROOT / "Dockerfile", tool)
        with (tool / "provisioning" / "requirements.txt").open("a") as requirements:
            requirements.write("cloudpickle\n")
        return tool


@contextmanager
def bench() -> Iterator[Bench]:
    rig = Rig()
    folder = Path(tempfile.mkdtemp(prefix="bench-provision-"))
    with rig.used_alone():
        rig.bring_up_docker(owned=True)
        place = Bench(rig, folder)
        try:
            # ssh and its like find the operator's home by the environment
            os.environ.update(place.operator.env)
            yield place
        finally:
            rig.engine.remove_containers()
            rig.engine.load_base(say)
            shutil.rmtree(folder, ignore_errors=True)


def timed(found: list[Reading], what: str, do: Any, note: str = "") -> Any:
    began = time.monotonic()
    made = do()
    found.append(Reading(what, "s", [round(time.monotonic() - began, 3)], note=note))
    return made


def measure(place: Bench) -> list[Reading]:
    """Everything, in the order in which it happens to a user."""
    found: list[Reading] = []
    tar = place.make_bare()
    timed(found, "init", lambda: place.runner("init"))
    timed(found, "host add", lambda: place.runner("host", "add", "gpu1", "rig-gpu"))
    pin_base(place.operator.project, place.engine)
    hosts = place.operator.project / "hosts" / "gpu1.toml"
    hosts.write_text(hosts.read_text() + 'image = "cpu"\n')
    load = f"'{place.operator.bin}/ssh' rig-gpu docker load < '{tar}'"
    megabytes = tar.stat().st_size // 10**6
    timed(
        found,
        "base image",
        lambda: subprocess.run(
            ["sh", "-c", load], env=place.operator.env, check=True, stdout=subprocess.DEVNULL
        ),
        f"{megabytes} MB by docker load over ssh",
    )
    made = place.provision()
    for step in ("connect", "look", "packages", "user", "build", "start", "up", "probe"):
        found.append(Reading(f"provision: {step}", "s", [made["steps"][step]]))
    layers = f"{made['layers_built']} layers made, {made['layers_cached']} from before"
    found.append(Reading("provision, whole", "s", [round(made["seconds"], 3)], note=layers))
    queued_s, first_s = place.first_line()
    found.append(Reading("submit job=dqn, to its id", "s", [round(queued_s, 3)]))
    found.append(Reading("submit job=dqn, to its first line", "s", [round(first_s, 3)]))
    first = {"init", "host add", "base image", "provision, whole"}
    steps = [each.values[0] for each in found if each.what in first]
    found.append(Reading("bare host to first line", "s", [round(sum(steps) + first_s, 3)]))

    again = [place.provision() for _ in range(3)]
    assert not any(each["changed"] for each in again)
    values = [round(each["seconds"], 3) for each in again]
    looks = [each["steps"]["probe"] for each in again]
    note = f"no layer, no container; {min(looks):.1f} s of it torch's import"
    found.append(Reading("again, nothing changed", "s", values, note=note))
    seconds, built, cached = place.build_for_another_uid()
    note = f"build alone; {built} layers made, {cached} from before"
    found.append(Reading("again, another uid", "s", [round(seconds, 3)], note=note))
    changed = place.provision(tool=place.tool_with_another_requirement())
    note = f"build {changed['steps']['build']:.1f} s of it"
    note += f"; {changed['layers_built']} layers made, {changed['layers_cached']} from before"
    found.append(
        Reading("again, another requirement", "s", [round(changed["seconds"], 3)], note=note)
    )
    back = place.provision()
    assert back["changed"] and "build" not in back["steps"]
    found.append(
        Reading("and back to the one before", "s", [round(back["seconds"], 3)], note="no build")
    )
    return found


def main() -> None:
    """Measure and report."""
    with bench() as place:
        found = measure(place)
    readings.report("provision", "from a bare host to a worker, and again", found)


if __name__ == "__main__":
    main()
