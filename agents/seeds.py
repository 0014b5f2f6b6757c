"""Seeds and generators: apart for training, evaluation and each rank, and kept in checkpoints."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator

import numpy as np
import torch

SEEDS_TRAIN, SEEDS_EVALUATION, SEEDS_FRESH, SEEDS_AGENT = range(4)


def derive_seed(seed: int, stream: int, *index: int) -> int:
    """A 32-bit seed; those of different streams (SEEDS_…) are never equal.

    The two low bits name the stream, so evaluation never sees an episode training has seen.
    """
    word = int(np.random.SeedSequence([seed, stream, *index]).generate_state(1)[0])
    return word // 4 * 4 + stream


def seed_everything(seed: int, rank: int) -> None:
    """Seed the global generators, which environments may draw from, differently on each rank."""
    word = derive_seed(seed, SEEDS_AGENT, rank)
    random.seed(word)
    np.random.seed(word)
    torch.manual_seed(word)


def rng_text(rng: np.random.Generator) -> str:
    """The generator's whole state; `rng_from_text` makes an equal generator.

    Text, for the weights-only loader of torch 2.4 reads no bytes.
    """
    return json.dumps(rng.bit_generator.state)


def rng_from_text(state: str | bytes) -> np.random.Generator:
    """The generator whose state `rng_text` took; older checkpoints have it as bytes."""
    rng = np.random.default_rng()
    rng.bit_generator.state = json.loads(state)
    return rng


@contextlib.contextmanager
def preserved_global_rng() -> Iterator[None]:
    """Undo what environments without a generator of their own draw from the global ones."""
    numbers, words, tensors = np.random.get_state(), random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        np.random.set_state(numbers)
        random.setstate(words)
        torch.set_rng_state(tensors)
