"""What only a machine with a real NVIDIA GPU can show; `make gpu` runs it, in under five minutes.

    python benchmarks/gpu_check.py             # torch with CUDA in this Python environment
    python benchmarks/gpu_check.py stand-in    # tries the script itself: the rig's cards, no CUDA

No Docker, no SSH: a `local` worker in a folder of its own, gone at the end. Checked are:
nvidia-smi's words are understood; a run gets one free card, sees that one alone and holds its
lease; the next run waits for it; a cancel brings the memory back before it returns; a program that
the runner did not start keeps its card; a killed rank and a killed launcher leave no memory behind
and the run goes on; a card that is too small is named as the cause; DQN trains on the card. Then
gpu_agents.py prints how many steps each agent makes in a second, on the card and beside it. Exit
status 0: all as it should be; 1: something is not, each named; 4: there is no GPU to check.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "provisioning" / "worker"))
sys.path.insert(1, str(REPOSITORY))

import gpu_agents  # noqa: E402
import gpus  # noqa: E402
import stage  # noqa: E402

NO_GPU_STATUS = 4
HOLD_MIB = 2000
TOLERANCE_MIB = 64
STEPS = 3000
LIMIT_S = 120.0
LOOK_S = 0.1

TORCH_SEES = "import torch; assert torch.cuda.is_available(); print(torch.cuda.get_device_name(0))"
TELL = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
TELL_CUDA = f"{TELL}; import torch; print(torch.cuda.device_count())"
WAIT_LONG = "print('holding', os.getpid(), flush=True); time.sleep(600)"
HOLD_CUDA = (
    "import os, time, torch;"
    f" kept = torch.zeros({HOLD_MIB} << 20, dtype=torch.uint8, device='cuda');"
    f" torch.cuda.synchronize(); {WAIT_LONG}"
)
HOLD_STAND_IN = f"import os, time, hold_gpu; hold_gpu.hold({HOLD_MIB}); {WAIT_LONG}"
TOO_MUCH_CUDA = (
    "import torch; total = torch.cuda.get_device_properties(0).total_memory;"
    " torch.zeros(2 * total, dtype=torch.uint8, device='cuda')"
)
TOO_MUCH_STAND_IN = "import hold_gpu; hold_gpu.hold(10_000_000)"


class Checks:
    """What was looked at, and what was found wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def that(self, holds: bool, claim: str, found: object = "") -> None:
        """Print a claim with what was found."""
        shown = f" ({found})" if str(found) else ""
        print(f"{'ok   ' if holds else 'WRONG'}  {claim}{shown}", flush=True)
        if not holds:
            self.wrong.append(claim)


def no_gpu(reason: str) -> int:
    """One line, and the status for it."""
    print(f"no GPU to check here: {reason}", file=sys.stderr)
    return NO_GPU_STATUS


def main(words: list[str]) -> int:
    """See the module's docstring."""
    if words not in ([], ["stand-in"]):
        print("usage: gpu_check.py [stand-in]", file=sys.stderr)
        return 2
    stand_in = bool(words)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return no_gpu("nvidia-smi is not installed")
    done = subprocess.run(gpus.QUERY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return no_gpu(f"nvidia-smi: {said[0] if said else f'exit {done.returncode}'}")
    if not done.stdout.strip():
        return no_gpu("nvidia-smi names no card")
    if not stand_in:
        seen = subprocess.run(
            [sys.executable, "-c", TORCH_SEES], capture_output=True, text=True, check=False
        )
        if seen.returncode != 0:
            last = (seen.stderr.strip().splitlines() or ["no reason given"])[-1]
            return no_gpu(f"torch cannot use it ({last or 'no reason given'})")
        print(f"torch sees {seen.stdout.strip()}")
    checks = Checks()
    with stage.made() as place:
        place.env["PATH"] = f"{Path(tool).parent}:{place.env['PATH']}"
        if stand_in:
            shutil.copy(REPOSITORY / "tests" / "rig" / "hold_gpu.py", place.project)
        check_cards(checks, done.stdout)
        free = [card for card in cards() if not gpus.is_used(card)]
        if not free:
            return no_gpu("every card is in use by somebody else")
        check_one_card(checks, place, stand_in)
        check_cancel(checks, place, len(free), stand_in)
        check_stranger(checks, place, free, stand_in)
        check_kills(checks, place, stand_in)
        check_too_small(checks, place, stand_in)
        check_training(checks, place, stand_in)
    gpu_agents.report(stand_in=stand_in)
    print(f"{len(checks.wrong)} wrong" if checks.wrong else "all as it should be")
    return 1 if checks.wrong else 0


def cards() -> list[dict[str, Any]]:
    """The cards as the worker sees them."""
    return gpus.query() or []


def check_cards(checks: Checks, said: str) -> None:
    """Every line of nvidia-smi's is a card with all its numbers."""
    print(said.strip())
    found = gpus.parse(said)
    lines = len(said.strip().splitlines())
    checks.that(len(found) == lines, "every line of nvidia-smi is understood", f"{lines} cards")
    missing = [
        f"{card['uuid']}: {key}" for card in found for key, cell in card.items() if cell is None
    ]
    checks.that(not missing, "no cell is missing", ", ".join(missing))


def check_one_card(checks: Checks, place: stage.Stage, stand_in: bool) -> None:
    """A run with one card is told of that one alone."""
    program = TELL if stand_in else TELL_CUDA
    run = submit(place, "gpus=1", "--wait", "--", "python", "-c", program)
    visible, *count = place.runner("tail", run).split()
    (leased,) = status(place, run)["gpus"]
    checks.that(visible == leased["uuid"], "CUDA_VISIBLE_DEVICES is the leased card", visible)
    if not stand_in:
        checks.that(count == ["1"], "torch sees one card", " ".join(count))


def check_cancel(checks: Checks, place: stage.Stage, free: int, stand_in: bool) -> None:
    """All free cards are leased, one filled, the next run waits; then the holder is cancelled."""
    before = {card["uuid"]: card["used_mib"] or 0 for card in cards()}
    program = HOLD_STAND_IN if stand_in else HOLD_CUDA
    holder = submit(place, f"gpus={free}", "grace=5s", "--", "python", "-c", program)
    wait_until(lambda: "holding" in place.runner("tail", "--no-follow", holder), "the card is full")
    leased = [card["uuid"] for card in status(place, holder)["gpus"]]
    filled = leased[0]
    used = used_mib(filled)
    grown = used - before[filled]
    checks.that(grown >= HOLD_MIB, "its memory shows in nvidia-smi", f"{grown} MiB more")
    owners = {lease_owner(place, uuid) for uuid in leased}
    checks.that(owners == {holder}, "every card of it is leased to it", f"{len(leased)} cards")

    second = submit(place, "gpus=1", "--", "true")
    waiting = status(place, second)
    checks.that(waiting["state"] == "queued", "the next run waits", waiting["reason"])

    began = time.monotonic()
    place.runner("cancel", holder)
    took_s = time.monotonic() - began
    left = used_mib(filled) - before[filled]
    checks.that(left <= TOLERANCE_MIB, "the memory is back when cancel returns", f"{left} MiB more")
    checks.that(took_s < 15, "cancel takes no longer than it must", f"{took_s:.2f} s")
    checks.that(lease_owner(place, filled) != holder, "the lease is free again")
    done = place.try_runner("wait", second, "--timeout", "60s").returncode
    checks.that(done == 0, "the run that waited is done")


def check_stranger(
    checks: Checks, place: stage.Stage, free: list[dict[str, Any]], stand_in: bool
) -> None:
    """A program from outside fills a card; a run for all the cards waits until it has gone."""
    uuid = free[0]["uuid"]
    before = used_mib(uuid)
    stranger = subprocess.Popen(
        [sys.executable, "-c", HOLD_STAND_IN if stand_in else HOLD_CUDA],
        cwd=place.project,
        env={**place.env, "CUDA_VISIBLE_DEVICES": uuid},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: used_mib(uuid) >= before + HOLD_MIB, "the stranger has its memory")
        run = submit(place, f"gpus={len(free)}", "--", "true")
        said = f"GPU {free[0]['index']} is in use by others"
        wait_until(lambda: said in str(status(place, run)["reason"]), "the stranger is named")
        time.sleep(2)
        waiting = status(place, run)
        checks.that(waiting["state"] == "queued", "a stranger keeps his card", waiting["reason"])
    finally:
        stranger.kill()
        stranger.wait()
    began = time.monotonic()
    done = place.try_runner("wait", run, "--timeout", "60s").returncode
    took_s = time.monotonic() - began
    checks.that(done == 0, "the run goes when he has gone", f"{took_s:.1f} s later")


def check_kills(checks: Checks, place: stage.Stage, stand_in: bool) -> None:
    """kill -9 of the rank, then of the launcher: no memory stays, and the run goes on."""
    program = HOLD_STAND_IN if stand_in else HOLD_CUDA
    before = {card["uuid"]: card["used_mib"] or 0 for card in cards()}
    run = submit(place, "gpus=1", "restarts=1", "grace=5s", "--", "python", "-c", program)

    def held() -> list[int]:
        """The pids of the attempts that have filled a card, oldest first."""
        lines = place.runner("tail", "--no-follow", run).splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("holding ")]

    def grown() -> int:
        return sum(card["used_mib"] or 0 for card in cards()) - sum(before.values())

    wait_until(held, "a card is full")
    alone = grown()
    os.kill(held()[0], signal.SIGKILL)
    wait_until(lambda: len(held()) == 2, "the run goes on after its rank was killed")
    checks.that(
        abs(grown() - alone) <= TOLERANCE_MIB, "a killed rank leaves no memory", f"{grown()} MiB"
    )
    born = json.loads((place.workspace / f"runs/{run}/attempts/2/proc.json").read_text())
    os.kill(int(born["launcher"]["pid"]), signal.SIGKILL)
    wait_until(lambda: len(held()) == 3, "the run goes on after its launcher was killed")
    checks.that(
        abs(grown() - alone) <= TOLERANCE_MIB,
        "a killed launcher leaves no memory",
        f"{grown()} MiB",
    )
    place.runner("cancel", run)
    checks.that(grown() <= TOLERANCE_MIB, "nor does the run at its end", f"{grown()} MiB more")
    ends = [
        json.loads((place.workspace / f"runs/{run}/attempts/{number}/exit.json").read_text())
        for number in (1, 2, 3)
    ]
    kinds = [end["cause"]["kind"] for end in ends]
    checks.that(kinds == ["signal", "launcher-lost", "cancelled"], "each end has its cause", kinds)


def check_too_small(checks: Checks, place: stage.Stage, stand_in: bool) -> None:
    """A run that wants more memory than the card has."""
    program = TOO_MUCH_STAND_IN if stand_in else TOO_MUCH_CUDA
    run = submit(place, "gpus=1", "--wait", "--", "python", "-c", program)
    cause = status(place, run)["cause"] or {}
    checks.that(
        cause.get("kind") == "cuda-oom", "memory that a card has not is named", cause.get("text")
    )


def check_training(checks: Checks, place: stage.Stage, stand_in: bool) -> None:
    """DQN trains on the card."""
    device = "cpu" if stand_in else "cuda"
    began = time.monotonic()
    words = ["job=dqn", "gpus=1", f"device={device}", f"steps={STEPS}", "seed=1"]
    run = submit(place, *words, "--wait")
    ended = status(place, run)
    log = place.runner("tail", run)
    checks.that(
        ended["outcome"] == "done", f"{STEPS} steps of DQN on {device}", ended["cause"] or ""
    )
    checks.that(ended["step"] == STEPS, "all its steps are reported", ended["step"])
    checks.that(f"device {device}" in log, "it says what it trained on")
    print(f"       {time.monotonic() - began:.1f} s from submit to end, {len(ended['gpus'])} card")


def submit(place: stage.Stage, *words: str) -> str:
    """The id of a new run. With --wait a run that fails is told by its status."""
    done = place.try_runner("submit", *words, limit_s=LIMIT_S)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        sys.exit(f"runner submit {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def status(place: stage.Stage, run: str) -> dict[str, Any]:
    """`runner status --json`."""
    body: dict[str, Any] = json.loads(place.runner("status", run, "--json"))
    return body


def used_mib(uuid: str) -> int:
    """What nvidia-smi says is used of a card."""
    return next(int(card["used_mib"] or 0) for card in cards() if card["uuid"] == uuid)


def lease_owner(place: stage.Stage, uuid: str) -> str | None:
    """The run that holds a card's lease; None when its lock is free."""
    with open(place.leases / uuid, "rb+") as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    return str(json.loads((place.leases / uuid).read_text())["run"])


def wait_until(look: Any, what: str) -> None:
    """Exits when it does not come to pass."""
    until = time.monotonic() + LIMIT_S
    while not look():
        if time.monotonic() > until:
            sys.exit(f"waited {LIMIT_S:g} s until {what}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    sys.exit(main(sys.argv[1:]))
