from __future__ import annotations

import random

import pytest

from runner.show.merged import MOST_BYTES, MergedLines


def test_lines_come_whole_with_their_rank() -> None:
    merged = MergedLines()
    assert merged.feed(0, 2, b"update 1 ") == b""
    assert merged.feed(1, 2, b"a\nb\n\nc") == b"1| a\n1| b\n1| \n"
    assert merged.feed(0, 2, b"loss\nupd") == b"0| update 1 loss\n"
    assert merged.finish() == b"0| upd\n1| c\n"
    assert merged.finish() == b""


@pytest.mark.parametrize(("ranks", "shown"), [(1, b"0| x\n"), (10, b"0| x\n"), (11, b" 0| x\n")])
def test_ranks_are_aligned(ranks: int, shown: bytes) -> None:
    assert MergedLines().feed(0, ranks, b"x\n") == shown
    assert MergedLines().feed(10, 101, b"x\n") == b" 10| x\n"


@pytest.mark.parametrize("seed", range(20))
def test_taken_apart_again_every_rank_has_its_own_bytes(seed: int) -> None:
    rng = random.Random(seed)
    logs = [rng.randbytes(5000).replace(b"|", b"\n") + b"end" for _ in range(12)]
    merged, shown, left = MergedLines(), b"", dict(enumerate(logs))
    while left:
        rank = rng.choice(list(left))
        size = rng.choice([1, 7, 400])
        shown += merged.feed(rank, 12, left[rank][:size])
        left[rank] = left[rank][size:]
        if not left[rank]:
            del left[rank]
    shown += merged.finish()
    told = dict.fromkeys(range(12), b"")
    for line in shown.split(b"\n")[:-1]:
        told[int(line[:2])] += line[4:] + b"\n"
    assert [told[rank] for rank in range(12)] == [log + b"\n" for log in logs]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    merged = MergedLines()
    piece = b"x" * 65536
    count = 0
    while not (shown := merged.feed(3, 4, piece)):
        count += len(piece)
        assert count < MOST_BYTES
    assert shown == b"3| " + b"x" * MOST_BYTES + b"\n"
    assert merged.finish() == b""


def test_what_is_drawn_over_keeps_its_rank_on_a_terminal() -> None:
    bar = b"\r10%\r20%\r\n"
    assert MergedLines().feed(0, 2, bar) == b"0| \r10%\r20%\r\n"
    assert MergedLines(redraws=True).feed(0, 2, bar) == b"0| \r0| 10%\r0| 20%\r\n"
