"""The names of runs: short, said aloud without doubt, drawn and not counted (pure)."""

from __future__ import annotations

import random

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Digits and letters without look-alikes."""
ID_LENGTH = 5


def draw_id(job: str | None, draw: random.Random) -> str:
    """`JOB-`, or `cmd-` for a command, and five characters without look-alikes."""
    return (job or "cmd") + "-" + "".join(draw.choice(ALPHABET) for _ in range(ID_LENGTH))
