"""`probe`: whether torch works here, on the cards that nobody has, and what else a run may miss."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
import uuid
from typing import Any, Dict, Iterator, List, Optional, Tuple

import config
import environment
import gpus
import leases
import notices
import paths
import plain
import seen
import supervisor
import trial
import venvs
import view
from paths import Workspace

from runner import states
from verbs import Call

Table = Dict[str, Any]
LIMIT_S = 20.0
CARDS_S = 6.0
"""How long nvidia-smi may take."""
_MOST_BYTES = 1 << 16
_RUN = "doctor"
"""Whom the leases name while cards are tried."""


def answer(call: Call, request: Table) -> Table:
    """{"limit_s"} → what is here, and what came of trying it:

    image up drained messages (notices.account) leases (may be written) shm_bytes stuck[]
    strangers[] nvidia (what is wrong with nvidia-smi) nvidia_said seen (cards it shows) at_boot;
    tried (false: `problem` says why) torch cuda python matmul reduce{backend, ranks, ok, text,
    slow} slow cards[{index, uuid, state, free_mib, text}], state one of ok, wrong, failed, busy. A
    card that a run or anybody else has is not touched; the others are leased while it lasts.
    """
    asked: Any = request.get("limit_s")
    limit_s = min(float(asked), 120.0) if plain.is_number(asked) and asked > 0 else LIMIT_S
    until = time.monotonic() + limit_s
    known = config.read(call.workspace)
    folder = paths.find_leases(dict(os.environ))
    found, problem, said = _cards(min(CARDS_S, limit_s / 2))
    chosen = [card for card in gpus.chosen(found, known.gpus) if _is_card(card)]
    told = _here(call.workspace, known, folder)
    told.update(nvidia=problem, nvidia_said=said, seen=len(chosen))
    rows, held = _lease(chosen, folder, told["strangers"])
    try:
        told.update(_try(call.workspace, known, rows, until - time.monotonic()))
    finally:
        for fd in held:
            os.close(fd)
    return dict(told, cards=rows)


def _here(workspace: Workspace, known: config.Config, folder: str) -> Table:
    found = seen.Seen.read(workspace.gpus)
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes: Optional[int] = shm.f_blocks * shm.f_frsize
    except OSError:
        shm_bytes = None
    return {
        "image": known.image,
        "up": supervisor.is_up(workspace),
        "drained": os.path.exists(workspace.drained),
        "messages": notices.account(workspace),
        "leases": os.access(folder, os.W_OK) if os.path.isdir(folder) else None,
        "shm_bytes": shm_bytes,
        "stuck": _stuck(workspace),
        "strangers": found.strangers if found is not None and found.is_fresh else [],
    }


def _stuck(workspace: Workspace) -> List[str]:
    names = []
    for spec, state in view.read_all(workspace):
        if state["state"] in states.LIVE:
            attempt = workspace.run(spec["id"]).attempt(int(state.get("attempt") or 1))
            if os.path.exists(os.path.join(attempt, "stuck.json")):
                names.append(str(spec["id"]))
    return names


def _cards(limit_s: float) -> Tuple[List[Table], Optional[str], Optional[str]]:
    """(cards, what is wrong with nvidia-smi, its own words)."""
    asked = gpus.Query(with_apps=False)
    until = time.monotonic() + limit_s
    while not asked.poll():
        if time.monotonic() > until:
            asked.give_up()
            return [], "nvidia-smi does not answer for %g s" % limit_s, None
        time.sleep(0.02)
    return asked.cards, None if asked.missing else asked.problem, asked.said


def _is_card(card: Table) -> bool:
    return "/" not in card["uuid"] and not card["uuid"].startswith(".")


def _lease(
    cards: List[Table], folder: str, strangers: List[Table]
) -> Tuple[List[Table], List[int]]:
    """A row for each card, and the leases of those that nobody has."""
    rows, held = [], []
    others = {row.get("uuid") for row in strangers}
    for card in cards:
        is_used = gpus.is_used(card) or card["uuid"] in others
        fd, why = _claim(leases.gpu_path(folder, card["uuid"]), is_used)
        state, text = ("busy", why) if fd is None else ("failed", "it did not come so far")
        rows.append({"index": card["index"], "uuid": card["uuid"], "state": state, "text": text})
        if fd is not None:
            held.append(fd)
    return rows, held


def _claim(path: str, is_used: bool) -> Tuple[Optional[int], str]:
    """The lease of one card, or why it is not to be had."""
    holder = leases.holder(path)
    if holder is not None:
        return None, "%s has it" % (holder.get("run") or "a run")
    if is_used:
        return None, "others use it"
    try:
        fd = leases.claim(path, uuid.uuid4().hex, _RUN)
    except OSError as error:
        return None, "its lease cannot be written: %s" % error.strerror
    if fd is not None:
        os.set_inheritable(fd, False)
    return fd, "a run has just taken it"


def _try(workspace: Workspace, known: config.Config, rows: List[Table], limit_s: float) -> Table:
    mine = [row for row in rows if row["state"] == "failed"]
    if limit_s < 2.0:
        return {"tried": False, "problem": "no time was left"}
    try:
        python = venvs.python_for({}) or environment.python({}, dict(os.environ))
    except OSError as error:
        return {"tried": True, "problem": str(error)}
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNNER_", "SUPERVISOR_"))
    }
    env.update({str(name): str(value) for name, value in known.env.items()})
    env.update(
        HOME=workspace.home,
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        CUDA_VISIBLE_DEVICES=",".join(row["uuid"] for row in mine),
    )
    argv = [python, "-I", "-B", os.path.abspath(trial.__file__), str(len(mine)), str(limit_s - 1)]
    out, err, code = _run(argv, env, limit_s)
    told: Table = {"tried": True}
    for row in _rows(out):
        number = row.pop("card", None)
        if number is None:
            told.update(row)
        elif isinstance(number, int) and 0 <= number < len(mine):
            mine[number].pop("text", None)
            mine[number].update(row)
    if told.get("cuda") is None:
        for row in mine:
            row.update(state="failed", text="this torch was built without CUDA")
    if code is None:
        told.update(slow=True, problem="no answer within %.0f s" % limit_s)
    elif code:
        lines = [line for line in err.splitlines() if line.strip()]
        told["problem"] = lines[-1][:300] if lines else "it ended with status %d" % code
    return told


def _rows(out: str) -> Iterator[Table]:
    for line in out.splitlines():
        if line.startswith("trial "):
            try:
                row = json.loads(line[6:])
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _run(argv: List[str], env: Dict[str, str], limit_s: float) -> Tuple[str, str, Optional[int]]:
    """(stdout, stderr, status) of a child and all it started; None: it had to be killed."""
    until = time.monotonic() + limit_s
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return "", "%s: %s" % (argv[0], error.strerror), 127
    kept = {"out": bytearray(), "err": bytearray()}
    code: Optional[int] = None
    with selectors.DefaultSelector() as chosen:
        chosen.register(child.stdout, selectors.EVENT_READ, "out")  # type: ignore[arg-type]
        chosen.register(child.stderr, selectors.EVENT_READ, "err")  # type: ignore[arg-type]
        while chosen.get_map() and time.monotonic() < until:
            for key, _ in chosen.select(0.1):
                piece = os.read(key.fd, 65536)
                if not piece:
                    chosen.unregister(key.fileobj)
                elif len(kept[key.data]) < _MOST_BYTES:
                    kept[key.data] += piece
        is_over = not chosen.get_map()
    if is_over:
        try:
            code = child.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    child.wait()
    for pipe in (child.stdout, child.stderr):
        assert pipe is not None
        pipe.close()
    return kept["out"].decode("utf-8", "replace"), kept["err"].decode("utf-8", "replace"), code
