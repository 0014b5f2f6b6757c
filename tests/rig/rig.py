"""The whole rig: brought up part by part, taken down without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.rig import base_image, engine, gpus, network, processes, python39, ways
from tests.rig.engine import RigEngine
from tests.rig.hosts import SSHD, HostSpec, RigHost
from tests.rig.paths import INSTANCES, RigError, RigPaths, Unavailable, read_paths

LOCK_FOLDER = Path("/run/lock")
# A stop of dockerd with busy containers takes its 15 s and a little.
STOP_LIMIT_S = 40.0


def say(text: str) -> None:
    print(f"rig: {text}", file=sys.stderr, flush=True)


class Rig:
    """One instance. Parts: `hosts` (namespaces, sshd) and `docker` (engine, base image)."""

    def __init__(self, paths: RigPaths | None = None) -> None:
        self.paths = paths or read_paths()
        number = self.paths.instance
        state = self._read_state()
        port = state.get("plain_port") or 22200 + number
        uid = 52000 + 10 * number
        self.login = RigHost(
            HostSpec(
                name="login",
                user="rig-jump",
                uid=uid + 1,
                netns=network.netns(number, "login"),
                address=network.login_address(number),
                port=22,
                docker="none",
                forwarding=True,
            ),
            self.paths,
        )
        self.gpu = RigHost(
            HostSpec(
                name="gpu",
                user="rig-gpu",
                uid=uid + 2,
                netns=network.netns(number, "gpu"),
                address=network.gpu_address(number),
                port=22,
                docker="allowed",
                jump="login",
            ),
            self.paths,
        )
        self.plain = RigHost(
            HostSpec(
                name="plain",
                user="rig-plain",
                uid=uid + 3,
                netns=None,
                address="127.0.0.1",
                port=port,
                docker="refused",
            ),
            self.paths,
        )
        self.engine = RigEngine(self.gpu, self.paths)

    @property
    def hosts(self) -> list[RigHost]:
        return [self.login, self.gpu, self.plain]

    @property
    def public_key(self) -> str:
        return (self.paths.keys / "id_ed25519.pub").read_text()

    # state

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self.paths.state_file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return state

    def _write_state(self, **changes: object) -> None:
        state = {**self._read_state(), "format": 1, **changes}
        self.paths.live.mkdir(parents=True, exist_ok=True)
        new = self.paths.state_file.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1))
        new.replace(self.paths.state_file)

    @property
    def _recorded(self) -> list[dict[str, int]]:
        return self._recorded_as("processes")

    def _recorded_as(self, key: str) -> list[dict[str, int]]:
        state = self._read_state()
        recorded: list[dict[str, int]] = state.get(key, [])
        # after a reboot the numbers belong to others
        return recorded if state.get("boot") == _boot_id() else []

    @property
    def firewall_before(self) -> str:
        """The machine's firewall as it was before the rig came up."""
        return str(self._read_state().get("firewall", ""))

    @property
    def is_owned(self) -> bool:
        """Whether a test session made it, to take it down again."""
        return bool(self._read_state().get("owner"))

    def is_up(self) -> bool:
        recorded = self._recorded
        return bool(recorded) and all(map(processes.is_alive, recorded))

    @contextlib.contextmanager
    def used_alone(self) -> Iterator[None]:
        """Hold the rig for one session; a second one is refused in words."""
        number = self.paths.instance
        others = [n for n in range(INSTANCES) if n != number]
        refusal = f"rig {number} is in use by {{holder}}; wait for it, or use another one:\n"
        refusal += f"  RUNNER_RIG_INSTANCE={others[0]} pytest …"
        with processes.locked(_lock_file(number), refusal=refusal):
            yield

    # up and down; the caller holds the lock

    def bring_up_hosts(self, *, owned: bool = False) -> None:
        """Have the three hosts run: those of an earlier `up`, or new ones."""
        check_hosts()
        if self.is_up() and not self._is_orphan():
            return
        self.take_down()
        started = time.monotonic()
        say(f"starting hosts of rig {self.paths.instance}")
        self.paths.live.mkdir(parents=True, exist_ok=True)
        self.paths.live.chmod(0o755)
        owner = processes.identify(os.getpid()) if owned else None
        firewall = network.read_firewall()
        self._write_state(boot=_boot_id(), owner=owner, firewall=firewall, processes=[])
        self._make_keys()
        gpus.FakeGpus(self.paths.gpus)
        network.make_network(self.paths.instance)
        made: list[dict[str, int]] = []
        for host in self.hosts:
            host.lay(self.public_key)
            if host.spec.docker != "none":
                engine.place_client(host.bin)
            made += host.boot()
            self._write_state(processes=made, plain_port=self.plain.spec.port)
        say(f"hosts are up ({time.monotonic() - started:.1f} s)")

    def bring_up_docker(self, *, owned: bool = False) -> None:
        """Have Docker answer on the gpu host, with the base image in it."""
        engine.check_engine()
        self.bring_up_hosts(owned=owned)
        started = time.monotonic()
        if not self.engine.is_up():
            say("starting dockerd")
            self._start_engine()
        self.engine.was_started = True
        self.engine.load_base(say)
        say(f"docker is ready ({time.monotonic() - started:.1f} s)")

    def bring_up_ways(self) -> None:
        """Have links with a delay to the gpu host, past the jump host (`ways.WAYS`)."""
        ways.check_ways()
        if self.ways:
            return
        say("making links with a delay")
        self.take_down_ways()
        self._write_state(ways=ways.start(self.paths))

    def take_down_ways(self) -> None:
        """Take them away again; safe to repeat."""
        for process in self._recorded_as("ways"):
            processes.kill(process)
        if self.is_up():
            ways.clear(self.paths.instance)
        self._write_state(ways=[])

    @property
    def ways(self) -> tuple[ways.Way, ...]:
        """The ways to the gpu host that are there now."""
        made = self._recorded_as("ways")
        return ways.WAYS if made and all(map(processes.is_alive, made)) and self.is_up() else ()

    def _start_engine(self) -> None:
        try:
            self.engine.start()
            self.engine.reset()
        except (RigError, AssertionError) as error:
            # its data outlives runs, so a run that was cut off can have spoilt it
            say(f"dockerd did not start on its old data; making it anew ({error})")
            self.reboot(self.gpu)
            shutil.rmtree(self.paths.engine_data, ignore_errors=True)
            self.engine.start()

    def reboot(self, host: RigHost) -> None:
        """Pull a host's plug and start it again, with its disk as it was."""
        self.halt(host)
        self.start(host)

    def halt(self, host: RigHost) -> None:
        """Pull a host's plug: every process of it dies at once."""
        if host.is_up():
            processes.kill(processes.identify(host.init_pid))

    def start(self, host: RigHost) -> None:
        """Boot a host that was halted (its Docker is started apart)."""
        made = host.boot()
        self._write_state(processes=[p for p in self._recorded if processes.is_alive(p)] + made)

    def repair(self) -> None:
        """Mend what a test broke: hosts, sshd, the link, Docker (each if it had been started)."""
        network.mend(self.paths.instance)
        if self.ways:
            ways.lay_routes(self.paths.instance)
        for host in self.hosts:
            if not host.is_up():
                self.start(host)
            elif not host.is_sshd_up():
                host.start_sshd()
        if self.engine.was_started and not self.engine.is_up():
            self.engine.start()

    def _is_orphan(self) -> bool:
        owner = self._read_state().get("owner")
        return isinstance(owner, dict) and not processes.is_alive(owner)

    def _make_keys(self) -> None:
        self.paths.keys.mkdir(exist_ok=True)
        for name in ("id_ed25519", "other_ed25519"):
            key = self.paths.keys / name
            if not key.exists():
                make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key]
                processes.run(make)

    def take_down(self) -> None:
        """End every process of the rig and remove all but the caches; safe to repeat."""
        if self.is_up() and self.engine.is_up():
            with contextlib.suppress(RigError, AssertionError):
                self.engine.remove_containers()
                self.engine.stop(STOP_LIMIT_S)
        for process in reversed(self._recorded + self._recorded_as("ways")):
            processes.kill(process)
        network.remove_network(self.paths.instance)
        _remove_cgroups(self.paths.instance)
        shutil.rmtree(self.paths.live, ignore_errors=True)

    def clean(self) -> None:
        """Take it down and remove the caches, which the instances share."""
        for number in range(INSTANCES):
            live = self.paths.live.with_name(str(number))
            other = Rig(RigPaths(number, live, self.paths.cache))
            if number != self.paths.instance and other.is_up():
                raise RigError(f"rig {number} is up and uses the same caches; take it down first")
        self.take_down()
        # by name: the folder may have been chosen by hand, and hold more
        for pattern in ("base*", "debs-*", "engine-*", "bullseye*", "python39.lock", "slow-link-*"):
            for made in self.paths.cache.glob(pattern):
                if made.is_dir():
                    shutil.rmtree(made)
                else:
                    made.unlink()
        with contextlib.suppress(OSError):
            self.paths.cache.rmdir()

    def prepare(self) -> None:
        """Make all that is slow to make and can be kept."""
        base_image.make_image_tar(self.paths.cache, say)
        python39.make_python39(self.paths.cache, say)


def check_hosts() -> None:
    """Raise `Unavailable` unless hosts can be made here."""
    if os.geteuid() != 0:
        raise Unavailable("the rig's hosts are namespaces with accounts of their own: needs root")
    for tool in (SSHD, "ssh", "ssh-keygen", "ip", "nsenter", "unshare", "setpriv", "ps"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    probe = ["unshare", "--pid", "--fork", "--mount", "--uts", "--net", "true"]
    if processes.run(probe, check=False).returncode != 0:
        raise Unavailable("this machine lets nobody make namespaces (unshare fails)")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _lock_file(instance: int) -> Path:
    return LOCK_FOLDER / f"runner-rig-{instance}.lock"


def _remove_cgroups(instance: int) -> None:
    """Remove the emptied control groups of the rig's containers."""
    for top in Path("/sys/fs/cgroup").glob(f"**/rig{instance}"):
        for folder in sorted(top.rglob("*"), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()
