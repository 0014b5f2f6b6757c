"""Which folders of a host no job may see, however a host file names them (pure)."""

from __future__ import annotations

from collections.abc import Iterable

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")
_KERNELS = ("proc", "sys", "dev")
STATE_FOLDER = ".local/state/runner"


def refused_data(
    path: str,
    *,
    workspace: str,
    home: str | None = None,
    sockets: Iterable[str] = SOCKETS,
    state: Iterable[str] = (),
) -> str | None:
    """Why `path` cannot be data of a host, or None.

    workspace, home, state (the runner's own folders): as they are there, the first also as the host
    file has it (`~/…`: what lies in the home cannot be told without it). All of them with links
    followed, where that can be known.
    """
    parts = _parts(path)
    if not parts:
        return "it is the root of the file system"
    if parts[0] in _KERNELS:
        return "it is the kernel's, not data"
    for socket in sockets:
        if _holds(parts, _parts(socket)):
            return "the Docker socket would be seen"
    if ".ssh" in parts:
        return "it lies in .ssh"
    own = _parts(STATE_FOLDER)
    if any(parts[at : at + len(own)] == own for at in range(len(parts))):
        return "it lies in the runner's own state"
    for folder in map(_parts, state):
        if _holds(parts, folder) or _holds(folder, parts):
            return "the runner's own state would be seen"
    if home is not None:
        inside = [(f"{home}/.ssh", ".ssh"), (f"{home}/{STATE_FOLDER}", "the runner's own state")]
        for kept, what in inside:
            if _holds(parts, _parts(kept)):
                return f"it holds {what}"
    if workspace.startswith("/"):
        if _holds(parts, _parts(workspace)):
            return "it is the workspace or holds it"
        if _holds(_parts(workspace), parts):
            return "it lies in the workspace"
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _holds(outer: list[str], inner: list[str]) -> bool:
    return inner[: len(outer)] == outer
