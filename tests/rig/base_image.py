"""The base image of the tests: a CPU stand-in for `pytorch/pytorch`, made here.

It holds all that the product's Dockerfile asks of a base, so that a build of it on this
base needs no network. It is kept as a tar in the cache, named by a digest of its inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.rig.paths import RigError, Unavailable
from tests.rig.processes import locked, run

TAG = "runner-rig/base:cpu"
# raise it when the steps below change what comes out
RECIPE = 2
SUITE = "bookworm"
PYTHON = "3.11"  # bookworm's
PACKAGES = ["ca-certificates", "openmpi-bin", "openssh-server", "procps", "python3", "python3-pip"]
PACKAGES += ["python3-venv", "rsync", "tini"]
WHEELS = ["torch==2.13.0", "numpy", "gymnasium[classic-control]", "tensorboard", "supervisor"]
WHEELS += ["py-spy", "jupyterlab", "opencv-python-headless"]
PROGRAMS = ["py-spy"]
"""What a wheel brings as a program of its own, not as a module."""
SCRIPTS = {
    "supervisord": "supervisor.supervisord",
    "supervisorctl": "supervisor.supervisorctl",
    "tensorboard": "tensorboard.main:run_main",
    "torchrun": "torch.distributed.run",
}
# What a training process and the worker load: compiled once here, not at each start
# in a container whose root is read-only.
WARM = "import gymnasium, numpy, supervisor.supervisord, tensorboard.main, torch"
WARM += ", torch.distributed.run, torch.utils.tensorboard, cv2, jupyterlab.labapp"
# Another maker may hold the lock for a whole cold build.
LIMIT_S = 900.0

Say = Callable[[str], None]


def image_tar(cache: Path) -> Path:
    """Where the image's root file system lies, or would lie."""
    inputs = [RECIPE, SUITE, PACKAGES, WHEELS, SCRIPTS, PROGRAMS, WARM]
    return cache / f"base-{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]}.tar"


def make_image_tar(cache: Path, say: Say) -> Path:
    """The tar, made when the cache lacks it (about a minute and a half)."""
    cache.mkdir(parents=True, exist_ok=True)
    tar = image_tar(cache)
    if tar.exists():
        return tar
    if shutil.which("debootstrap") is None:
        raise Unavailable("debootstrap is not installed (the base image is made with it)")
    busy = f"the base image is still being made by {{holder}} (waited {LIMIT_S:g} s)"
    with locked(cache / "base.lock", wait_s=LIMIT_S, refusal=busy):
        if not tar.exists():
            for old in cache.glob("base-*.tar*"):
                old.unlink()
            work = cache / "base.work"
            # debootstrap that was killed leaves it mounted
            subprocess.run(["umount", work / "root/proc"], stderr=subprocess.DEVNULL, check=False)
            shutil.rmtree(work, ignore_errors=True)
            _build(work, cache, tar, say)
            shutil.rmtree(work)
    return tar


def bootstrap(root: Path, cache: Path, suite: str, packages: list[str], say: Say) -> None:
    """Lay a minimal Debian `suite` with `packages` into `root`; downloads are kept in `cache`."""
    include = f"--include={','.join(packages)}"
    name = hashlib.sha256(f"{suite} {include}".encode()).hexdigest()[:16]
    debs = cache / f"debs-{suite}-{name}.tar"
    base = ["debootstrap", "--variant=minbase", include]
    if not debs.exists():
        say(f"fetching Debian packages of {suite}")
        new = debs.with_suffix(".new")
        fetch = root.with_name(root.name + ".fetch")
        run([*base, f"--make-tarball={new}", suite, fetch], limit_s=LIMIT_S)
        new.rename(debs)
    say(f"unpacking {suite}")
    run([*base, f"--unpack-tarball={debs}", suite, root], limit_s=LIMIT_S)


def _build(work: Path, cache: Path, tar: Path, say: Say) -> None:
    root, site = work / "root", work / "site"
    work.mkdir()
    wheels = subprocess.Popen(  # beside debootstrap, which keeps only one core busy
        _pip_argv(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        bootstrap(root, cache, SUITE, PACKAGES, say)
        say("waiting for torch and its kind")
        said, _ = wheels.communicate(timeout=LIMIT_S)
    finally:
        if wheels.poll() is None:
            wheels.kill()
            wheels.wait()
    if wheels.returncode != 0:
        raise RigError(f"pip could not fetch the base image's packages:\n{said[-2000:]}")
    commands = root / "usr/local/bin"
    commands.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        shutil.copy2(site / "bin" / name, commands / name)
    _strip(root, site)
    packages = root / f"usr/local/lib/python{PYTHON}/dist-packages"
    packages.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(packages, ignore_errors=True)
    site.rename(packages)
    _write_scripts(commands)
    say("compiling what jobs import")
    run(["chroot", root, "/usr/bin/python3", "-c", WARM], limit_s=LIMIT_S)
    say("packing")
    new = tar.with_suffix(".tar.new")
    run(["tar", "-C", root, "--one-file-system", "-cf", new, "."], limit_s=LIMIT_S)
    new.rename(tar)


def _pip_argv(site: Path) -> list[str]:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    argv += ["--disable-pip-version-check", "--root-user-action=ignore", "--target", str(site)]
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != PYTHON:
        argv += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
        for glibc in ("2_28", "2_17", "2014"):
            argv += ["--platform", f"manylinux{'' if glibc == '2014' else '_'}{glibc}_x86_64"]
    return argv + os.environ.get("RUNNER_RIG_PIP_ARGS", "").split() + WHEELS


def _strip(root: Path, site: Path) -> None:
    """Leave out what no test needs; half of the time to load the image."""
    for name in ("doc", "man", "locale", "info"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    for folder in (root / "var/cache/apt", root / "var/lib/apt/lists"):
        shutil.rmtree(folder, ignore_errors=True)
    for host_key in (root / "etc/ssh").glob("ssh_host_*"):
        host_key.unlink()
    # the stand-in's pip works plainly, as that of pytorch/pytorch does
    (root / f"usr/lib/python{PYTHON}/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    for name in ("torch/include", "torch/test", "bin", "numpy/tests"):
        shutil.rmtree(site / name, ignore_errors=True)
    for archive in site.glob("torch/lib/*.a"):
        archive.unlink()
    for tests in [*site.glob("sympy/**/tests"), *site.glob("networkx/**/tests")]:
        shutil.rmtree(tests)
    # this machine's registry may be reached through an authority of its own
    machine = Path("/etc/ssl/certs/ca-certificates.crt")
    if machine.exists():
        shutil.copyfile(machine, root / "etc/ssl/certs/ca-certificates.crt")


def _write_scripts(folder: Path) -> None:
    """Console scripts that name the image's own Python, and `python` beside `python3`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        function = function or "main"
        text = f"#!/usr/bin/python3\nimport sys\nfrom {module} import {function}\n"
        (folder / name).write_text(text + f"sys.exit({function}())\n")
        (folder / name).chmod(0o755)
    (folder / "python").symlink_to("/usr/bin/python3")
