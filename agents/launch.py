"""An agent's main: options in, training or evaluation, exit status out."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from checkpoint import own_folder, read_model
from evaluation import Choose, evaluate_by_hand, play_greedy
from options import Refused, read_options
from room import check_room
from runtime import Fault, Run, append_line, edge, end_joined, open_progress

T = TypeVar("T")


def launch(
    cls: type[T],
    train: Callable[[T, Run], Any],
    policy: Callable[[dict[str, Any]], Choose],
    words: Sequence[str],
    *,
    play: Callable[..., list[float] | None] = play_greedy,
    writes: bool = True,
) -> None:
    """An agent's main: options in, training or evaluation, exit status out.

    cls: a dataclass of options with `seed` (drawn when negative) and `device`. play: plays a policy
    where evaluation.play_greedy cannot (teams). writes: whether `train` makes checkpoints.
    Exit status: 0 done, 1 a fault, 2 refused (its fault line says `setup`: to start again would not
    help), 143 or 130 stopped by a signal with the state saved.
    """
    name, run = Path(sys.argv[0]).stem, None
    try:
        if any(word.startswith("evaluate=") for word in words):
            return evaluate_by_hand(words, policy, play)
        options: Any = read_options(cls, words)
        check_room(options)
        run = Run(name, device=options.device)
        if options.seed < 0:
            old = read_model(run.resume)["options"]["seed"] if run.resume else None
            drawn = run.gather(int.from_bytes(os.urandom(4), "big"))[0]
            options = replace(options, seed=drawn if old is None else old)
        with edge(run), own_folder(run) if writes else contextlib.nullcontext():
            train(options, run)
    except Fault as fault:  # of an evaluation by hand
        sys.exit(f"{name}: {fault}")
    except Refused as problem:
        lines = str(problem).splitlines()
        for line in lines:
            print(f"{name}: {line}", file=sys.stderr)
        with contextlib.suppress(OSError, Refused):  # a full disk must not hide what was said
            append_line(open_progress(), {"fault": "setup", "text": "; ".join(lines)})
        sys.exit(2)
    finally:
        if run:
            run.tidy()
        end_joined(sys.exc_info()[1])
    return None
