"""The gpu host's own Docker: started in its namespaces, with data of its own."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.helpers.wait import wait_for
from tests.rig import base_image, gpus, processes
from tests.rig.hosts import START_LIMIT_S, RigHost
from tests.rig.paths import RigError, RigPaths, Unavailable


class RigEngine:
    """dockerd on a rig host, and a client for tests that speaks to it from here."""

    base_image = base_image.TAG

    def __init__(self, host: RigHost, paths: RigPaths) -> None:
        self.host = host
        self.paths = paths
        self.log = host.folder / "dockerd.log"
        self.libexec = host.folder / "libexec"
        self.was_started = False  # by or for this session: then a repair starts it again

    @property
    def url(self) -> str:
        return f"unix://{self.host.docker_socket}"

    def docker(
        self,
        *words: str | Path,
        check: bool = True,
        limit_s: float = 120.0,
        stdin: bytes | None = None,
        buildkit: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS…` against this engine, from the operator's machine.

        buildkit: which of its two builders `docker build` asks for.
        """
        argv = [_client(), "-H", self.url, *map(str, words)]
        done = subprocess.run(
            argv,
            input=stdin or b"",
            capture_output=True,
            timeout=limit_s,
            check=False,
            # neither the machine's client configuration nor its context
            env={
                "PATH": self.host.path,
                "HOME": str(self.host.folder),
                "DOCKER_BUILDKIT": str(int(buildkit)),
            },
        )
        out, err = (data.decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        if check and done.returncode != 0:
            raise RigError(f"docker {' '.join(argv[3:])} ended with {done.returncode}:\n{err}")
        return subprocess.CompletedProcess(argv, done.returncode, out, err)

    def is_up(self) -> bool:
        if not self.host.is_up() or not self.host.docker_socket.exists():
            return False
        return self.docker("version", check=False, limit_s=START_LIMIT_S).returncode == 0

    def start(self, **settings: object) -> None:
        """Start dockerd; `settings` go into its daemon.json (say `**{"live-restore": True}`)."""
        gpus.place_hook(self.libexec, self.paths.gpus)
        for name in ("docker.sock", "docker.pid"):
            (self.host.run_folder / name).unlink(missing_ok=True)
        self.paths.engine_data.mkdir(parents=True, exist_ok=True)
        config = {
            "data-root": str(self.paths.engine_data),
            "hosts": ["unix:///run/docker.sock"],
            "group": "docker",
            # neither depends on an init system, which this machine may lack
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/rig{self.paths.instance}",
            "runtimes": {"nvidia": {"path": shutil.which("runc") or "/usr/sbin/runc"}},
            **settings,
        }
        config_file = self.host.folder / "daemon.json"
        config_file.write_text(json.dumps(config))
        # runc would keep its files in the runtime folder of whoever starts this
        argv = ["env", "-u", "XDG_RUNTIME_DIR", f"PATH={self.libexec}:{self.host.path}"]
        argv += ["dockerd", f"--config-file={config_file}"]
        child = processes.spawn(self.host.inside(argv), self.log)

        def answers() -> bool:
            if child.poll() is not None:
                raise RigError(f"dockerd ended:\n{self.log.read_text()[-3000:]}")
            return self.is_up()

        wait_for(answers, 3 * START_LIMIT_S, "dockerd to answer")
        self.was_started = True

    @property
    def pid(self) -> int:
        """dockerd's pid, as the host numbers it."""
        return int((self.host.run_folder / "docker.pid").read_text())

    def stop(self, limit_s: float = 60.0) -> None:
        """Stop dockerd as an upgrade does: containers are stopped first."""
        self._end(signal.SIGTERM, limit_s)

    def kill(self) -> None:
        """Let dockerd alone die at once; containerd and containers live on."""
        self._end(signal.SIGKILL, START_LIMIT_S)

    def _end(self, number: signal.Signals, limit_s: float) -> None:
        pid = self.pid
        self.host.signal(pid, number)

        def is_gone() -> bool:
            return all(row[0] != pid for row in self.host.processes())

        wait_for(is_gone, limit_s, f"dockerd to end on {number.name}")

    def load_base(self, say: Callable[[str], None]) -> None:
        """See that the base image is there, whichever way is quickest."""
        tar = base_image.make_image_tar(self.paths.cache, say)
        key = tar.stem
        label = '{{index .Config.Labels "rig.base"}}'
        shown = self.docker("image", "inspect", "-f", label, self.base_image, check=False)
        if shown.stdout.strip() != key:
            say("loading the base image")
            change = ["-c", 'CMD ["bash"]', "-c", f"LABEL rig.base={key}"]
            self.docker("import", *change, tar, self.base_image, limit_s=600)

    def reset(self) -> None:
        """Take away all but the base image."""
        self.remove_containers()
        columns = "{{.ID}} {{.Repository}}:{{.Tag}}"
        listed = self.docker("image", "ls", "--no-trunc", "--format", columns)
        rows = [line.split(" ", 1) for line in listed.stdout.splitlines()]
        base = {row[0] for row in rows if row[1] == self.base_image}
        others = sorted({row[0] for row in rows} - base)
        if others:
            self.docker("image", "rm", "-f", *others, check=False)
        self.docker("image", "prune", "-f")
        self.docker("builder", "prune", "-a", "-f", check=False)
        self.docker("volume", "prune", "-f")
        self.docker("network", "prune", "-f")

    def remove_containers(self) -> None:
        ids = self.docker("ps", "-aq").stdout.split()
        if ids:
            self.docker("rm", "-f", "-v", *ids, check=False)


def _client() -> str:
    """The client of the engine's own package before any other on the machine."""
    packaged = Path("/usr/bin/docker")
    return str(packaged) if packaged.exists() else shutil.which("docker") or "docker"


def place_client(bin_folder: Path) -> None:
    """Put `docker` into a rig host's bin folder: a file of its own, for tests to replace.

    No link: what a test writes there would go through it to the machine's client.
    """
    bin_folder.mkdir(parents=True, exist_ok=True)
    front = bin_folder / "docker"
    front.unlink(missing_ok=True)
    front.write_text(f'#!/bin/sh\nexec {shlex.quote(_client())} "$@"\n')
    front.chmod(0o755)


def check_engine() -> None:
    """Raise `Unavailable` unless dockerd runs here."""
    for tool in ("dockerd", "containerd", "runc", "iptables"):
        path = shutil.which(tool, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin")
        if path is None:
            raise Unavailable(f"{tool} is not installed (package docker.io or iptables)")
        if processes.run([path, "--version"], check=False).returncode != 0:
            raise Unavailable(f"{path} does not run")
