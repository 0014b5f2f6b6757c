"""What an image run by hand looks at before it starts anything, and what it says then.

`FOLDER by-hand` is its first program. What would fail later and far from its cause is refused here,
a line for each thing: a service that there is not, a key that is missing, a folder that cannot be
written. Then the services start as supervisord's programs, as in any other worker.
"""

from __future__ import annotations

import difflib
import errno
import ipaddress
import os
import pwd
import re
import sys
from typing import Dict, List, Mapping, Optional

import byhand
import sshd
from paths import Workspace

REFUSED = 2
_NEEDED = (".runner", "code", "checkpoints", "logs")
_MOUNTS = "/proc/self/mountinfo"
_COPY = "on the host, and mount COPY: sudo install -m 644 -o %d -g %d KEY.pub COPY"
"""The key itself stays as it is: it is somebody's own."""


def main(environ: Dict[str, str]) -> int:
    """Starts the services that RUNNER_SERVICES names, and stays; REFUSED with a line each."""
    environ.setdefault("RUNNER_WORKSPACE", "/workspace")
    workspace = Workspace(environ["RUNNER_WORKSPACE"])
    os.environ.update(environ)
    wrong = problems(environ, workspace.root, sshd.keys_file())
    if wrong:
        for line in wrong:
            print("runner: %s" % line, file=sys.stderr)
        return REFUSED
    import shutil

    import supervisor

    workspace.make()
    for line in [*other_mounts(workspace.root), *told(environ, workspace)]:
        print("runner: %s" % line, file=sys.stderr, flush=True)
    return supervisor.keep(workspace, shutil.which("python3") or sys.executable)


def problems(environ: Mapping[str, str], root: str, keys: str) -> List[str]:
    """Why nothing can start, a line for each thing."""
    found = [*_services(environ), *_address(environ), *_user()]
    whole = unwritable(root)  # then nothing in it needs to be looked at, or could be
    folders = [os.path.join(root, name) for name in _NEEDED] if whole is None else []
    found += [line for line in [whole, *map(unwritable, folders)] if line]
    if "sshd" in byhand.wanted(environ):
        found += _keys(keys)
    return found


def unwritable(folder: str) -> Optional[str]:
    """Who owns a folder that this user cannot write, and what to type; None where all is well.

    One that was mounted read-only is so by somebody's wish.
    """
    probe = os.path.join(folder, ".runner-probe-%d" % os.getpid())
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EROFS):
            return None
        if error.errno not in (errno.EACCES, errno.EPERM):
            return "%s cannot be written: %s" % (folder, error.strerror)
    owner, us = os.stat(folder), (os.getuid(), os.getgid())
    if owner.st_uid == us[0]:
        return "%s cannot be written by its owner; on the host: chmod u+rwx FOLDER" % folder
    how = "sudo chown %d:%d FOLDER" % us
    if owner.st_uid != 0:
        how += ", or build the image for that user: make image RUNNER_UID=%d" % owner.st_uid
    return "%s cannot be written: it belongs to uid %d%s, this image's user is uid %d; %s%s" % (
        *(folder, owner.st_uid, " (root)" if owner.st_uid == 0 else "", us[0]),
        *("on the host: ", how),
    )


def other_mounts(root: str, table: str = _MOUNTS) -> List[str]:
    """A line for each other folder mounted below the workspace that cannot be written."""
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        points = [_plain(line.split(" ")[4]) for line in file if line.count(" ") > 4]
    needed = {os.path.join(root, name) for name in _NEEDED}
    below = {point for point in points if point.startswith(root + "/")} - needed
    folders = sorted(point for point in below if os.path.isdir(point))
    return [line for line in map(unwritable, folders) if line]


def told(environ: Mapping[str, str], workspace: Workspace) -> List[str]:
    """What starts, and how to reach it."""
    import services

    address = byhand.listen_address(environ)
    lines = []
    for name in byhand.wanted(environ):
        line = "%s on port %d" % (services.TITLES[name], byhand.PORTS[name])
        if name == "sshd":
            line += ", user %s, keys alone" % pwd.getpwuid(os.getuid()).pw_name
        if name == "jupyter":
            read = "docker exec %s cat %s" % (os.uname().nodename, services.token_path(workspace))
            line += "; its token: %s" % read
        if name == "tensorboard":
            line += " of this container alone; through its sshd: ssh -L 6006:127.0.0.1:6006 …"
        lines.append(line)
    if _is_loopback(address or ""):
        lines.append("all of it for this container alone; -p needs -e RUNNER_LISTEN=0.0.0.0 too")
    return lines


def _services(environ: Mapping[str, str]) -> List[str]:
    known = ", ".join(byhand.SERVICES)
    if not byhand.wanted(environ):
        return [
            "nothing to start; name services, -e RUNNER_SERVICES=jupyter,sshd (there are: %s), "
            "or a command behind the image" % known
        ]
    lines = []
    for name in byhand.unknown(environ):
        near = difflib.get_close_matches(name, byhand.SERVICES, 1)
        hint = " (did you mean %s?)" % near[0] if near else ""
        lines.append("RUNNER_SERVICES: %s is no service%s; there are: %s"
                     % (ascii(name), hint, known))  # fmt: skip
    return lines


def _address(environ: Mapping[str, str]) -> List[str]:
    given = environ.get("RUNNER_LISTEN") or "127.0.0.1"
    try:
        ipaddress.ip_address(given)
    except ValueError:
        return [
            "RUNNER_LISTEN: %s is no IP address; 0.0.0.0 is all of this container's" % ascii(given)
        ]
    return []


def _is_loopback(given: str) -> bool:
    return ipaddress.ip_address(given).is_loopback


def _user() -> List[str]:
    uid = os.getuid()
    if uid == 0:
        return ["it does not run as root; leave out --user, or build it for a user: make image"]
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return ["uid %d is not this image's user; build one for it: make image RUNNER_UID=%d"
                % (uid, uid)]  # fmt: skip
    return []


def _keys(path: str) -> List[str]:
    mount = "mount a public key: -v ~/.ssh/id_ed25519.pub:%s:ro" % path
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return ["sshd has no key to let in; %s" % mount]
    except IsADirectoryError:
        # what Docker makes of a file that is not there
        return ["%s is a folder: the file mounted there is not on the host; %s" % (path, mount)]
    except OSError as error:
        line = "%s cannot be read by uid %d: %s" % (path, os.getuid(), error.strerror)
        return ["%s; %s" % (line, _COPY % (os.getuid(), os.getgid()))]
    if any("PRIVATE KEY" in line for line in lines):
        return ["%s holds a private key; mount the one that ends in .pub" % path]
    if not any(line and not line.startswith("#") for line in lines):
        return ["sshd has no key to let in: %s is empty; %s" % (path, mount)]
    why = sshd.problem(path)
    return ["%s; %s" % (why, _mended(path))] if why else []


def _mended(path: str) -> str:
    """What to type where a mounted key, or its folder, is another's or may be written by others."""
    owners = [os.stat(each).st_uid for each in (os.path.dirname(path), path)]
    others = [uid for uid in owners if uid not in (0, os.getuid())]
    if not others:
        return "on the host: chmod go-w what is mounted there"
    how = _COPY % (os.getuid(), os.getgid())
    return "%s, or build the image for that user: make image RUNNER_UID=%d" % (how, others[-1])


def _plain(text: str) -> str:
    """A path of mountinfo, its octal escapes undone."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
