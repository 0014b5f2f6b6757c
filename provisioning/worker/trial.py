"""What `probe` has the job's own Python do: import torch, let ranks talk, compute on each card.

Run as a file by any Python that has torch: `trial.py CARDS SECONDS`. Each line it prints is a JSON
table of one thing that was done, so that what came before a hang is known:

    {"torch", "cuda", "python"}
    {"reduce": {"backend", "ranks", "ok", "text"?}}
    {"matmul": bool}                                       on the CPU
    {"card": number, "state": ok|wrong|failed, "free_mib"?, "text"?}

Nothing listens but on loopback: the ranks meet in a file.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List, Tuple

_MOST_RANKS = 8
_SIZE = 256


def main(argv: List[str]) -> int:
    """Try it all, and tell."""
    cards, limit_s = int(argv[1]), float(argv[2])
    torch: Any = importlib.import_module("torch")
    _tell(
        {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    )
    usable = cards if torch.version.cuda else 0
    # first, since ranks are forked, and CUDA does not survive that
    _tell({"reduce": reduce_over(torch, usable, limit_s * 0.6)})
    numbers = torch.arange(256.0).reshape(16, 16)
    exact = (numbers.double() @ numbers.double()).float()
    _tell({"matmul": bool(((numbers @ numbers) == exact).all())})
    for number in range(usable):
        _tell(dict(try_card(torch, number), card=number))
    return 0


def try_card(torch: Any, number: int) -> Dict[str, Any]:
    """One card against the CPU."""
    try:
        device = torch.device("cuda", number)
        torch.manual_seed(1)
        one, other = torch.rand(_SIZE, _SIZE), torch.rand(_SIZE, _SIZE)
        told = (one.to(device) @ other.to(device)).cpu()
        free, _ = torch.cuda.mem_get_info(number)
        worst = float((told - one @ other).abs().max())
        # a sum of 256 products below one; a card's own order and TF32 stay far below
        if not worst < 0.5:
            return {"state": "wrong", "text": "off by %g" % worst}
        return {"state": "ok", "free_mib": int(free) >> 20}
    except Exception as error:  # whatever a driver says is the answer
        return {"state": "failed", "text": _first_line(error)}


def reduce_over(torch: Any, cards: int, limit_s: float) -> Dict[str, Any]:
    """A sum over ranks: one for each card, else two on the CPU."""
    ranks = min(cards, _MOST_RANKS) if cards > 1 else 2
    backend = "nccl" if cards > 1 else "gloo"
    told: Dict[str, Any] = {"backend": backend, "ranks": ranks, "ok": False}
    if not torch.distributed.is_available():
        return dict(told, text="this torch was built without distributed")
    os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    with tempfile.TemporaryDirectory(prefix="runner-probe-") as folder:
        children = [
            _fork(torch, backend, rank, ranks, os.path.join(folder, "meet"), limit_s)
            for rank in range(ranks)
        ]
        texts, late = _wait(children, limit_s)
    if late:
        return dict(told, slow=True, text="no answer for %.0f s" % limit_s)
    return dict(told, text=texts[0]) if texts else dict(told, ok=True)


def _fork(
    torch: Any, backend: str, rank: int, ranks: int, path: str, limit_s: float
) -> Tuple[int, int]:
    """(pid, what it says why it failed) of one rank."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    status = 1
    try:
        _rank(torch, backend, rank, ranks, path, limit_s)
        status = 0
    except BaseException as error:
        os.write(write, _first_line(error).encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _rank(torch: Any, backend: str, rank: int, ranks: int, path: str, limit_s: float) -> None:
    dist = torch.distributed
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method="file://" + path,
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=limit_s),
    )
    told = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(told)
    expected = ranks * (ranks + 1) / 2
    if float(told.min()) != expected or float(told.max()) != expected:
        raise ValueError("the sum is %g, not %g" % (float(told.min()), expected))


def _wait(children: List[Tuple[int, int]], limit_s: float) -> Tuple[List[str], bool]:
    """What the ranks that failed said, and whether some had to be killed."""
    until = time.monotonic() + limit_s
    texts = []
    late = False
    for pid, read in children:
        if not select.select([read], [], [], max(0.0, until - time.monotonic()))[0]:
            late = True
            os.kill(pid, signal.SIGKILL)
        said = b"" if late else os.read(read, 500)
        os.close(read)
        status = os.waitpid(pid, 0)[1]
        if status and not late:
            texts.append(said.decode("utf-8", "replace") or "a rank ended with status %d" % status)
    return texts, late


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def _tell(row: Dict[str, Any]) -> None:
    print("trial " + json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
