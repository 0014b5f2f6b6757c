"""Environments: made or refused by name, what an agent must know of them, and their state kept.

What a checkpoint keeps of one is what each layer holds, from the outermost wrapper to the
environment itself, and for simulators their own copy of the state: pickles of MuJoCo and ALE
environments load without a word and hold a fresh one. Whether that is all of it is tried before a
training begins: a copy made of it is played beside the original.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import atari
import blame
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from options import Refused, near
from seeds import preserved_global_rng

Env: TypeAlias = gym.Env[Any, Any]
Floats: TypeAlias = NDArray[np.float32]
LARGEST = float(np.finfo(np.float32).max)
_TRIED_STEPS = 40


@dataclass(frozen=True)
class Facts:
    """What an agent must know of an environment.

    shape, image: of one observation; images are bytes (uint8), all else float32. actions: how
    many there are to choose from, 0 for continuous ones. low, high: their box, each (numbers,).
    exact: whether a checkpoint can keep the environment's state.
    """

    shape: tuple[int, ...]
    image: bool
    actions: int
    low: Floats
    high: Floats
    exact: bool

    @property
    def numbers(self) -> int:
        """Numbers in a flat observation."""
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> type[np.generic]:
        """Of an observation, as an agent sees it."""
        return np.uint8 if self.image else np.float32


def make_env(name: str, *, training: bool = False, render: str | None = None) -> Env:
    """The environment `name`, a gymnasium id or `module:id`. Raises Refused, with near names.

    Modules are looked up beside the agent and in the current folder. An Atari game comes with its
    usual wrappers; training: also those that change what it scores. render: a gymnasium mode.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, colon, plain = name.rpartition(":")
    if not plain or (colon and not all(part.isidentifier() for part in module.split("."))):
        raise Refused(f"env {name!r}: it must be an id of gymnasium, or module:id")
    with blame.refusing(name):
        try:
            if module:
                importlib.import_module(module)
            if atari.is_game(plain):
                return atari.make(plain, training=training, render=render)
            # the checker costs a third of a CartPole step; `look` looks once instead
            mode = {} if render is None else {"render_mode": render}  # few stubs know the word
            return gym.make(plain, disable_env_checker=True, **mode)
        except ImportError as error:
            raise Refused(f"env {name!r}: {error}") from error
        except gym.error.Error as error:
            known = near(plain, gym.registry) if plain not in gym.registry else ""
            raise Refused(f"env {name!r} cannot be made{known or f': {error}'}") from error


def look(name: str, *, acts: str = "discrete", sees: str = "flat") -> Facts:
    """What an agent must know of `name`, found by trying it for a moment.

    acts: `discrete`, `box` or `any`; sees: `flat` or `any` (images too). Raises Refused for
    anything else, and for what does not follow gymnasium's API.
    """
    env = make_env(name, training=True)
    with blame.refusing(name), contextlib.closing(env), preserved_global_rng():
        seen, image = env.observation_space, is_image(env.observation_space)
        _look_at_observations(name, seen, sees)
        actions, low, high = _look_at_actions(name, env.action_space, acts)
        chooser = np.random.default_rng(0)
        first, _ = env.reset(seed=0)
        then, reward, _, _, info = env.step(_draw(env.action_space, chooser))
        for call, given in (("reset", first), ("step", then)):
            if np.shape(given) != seen.shape:
                raise Refused(f"env {name!r}: {call}() gives {np.shape(given)}, not {seen.shape}")
        _look_at_reward(name, reward)
        if not isinstance(info, dict):
            raise Refused(f"env {name!r}: step() gives the info {info!r}; it must be a dict")
        exact = survives(env, lambda: make_env(name, training=True))
        return Facts(tuple(seen.shape), image, actions, low, high, exact)


def _look_at_observations(name: str, space: Any, sees: str) -> None:
    has = f"env {name!r} has observations {space}"
    shape = space.shape if isinstance(space, gym.spaces.Box) else ()
    if 0 in shape:
        raise Refused(f"{has}; there is nothing in them to learn from")
    if is_image(space) and sees == "flat":
        raise Refused(f"{has}; this agent learns from flat ones only")
    if is_image(space) and shape[-1] <= 4 < min(shape[:2]):
        turned = (shape[2], *shape[:2])
        raise Refused(
            f"{has}; pictures are (channels or frames, height, width) here: turn them to {turned} "
            "by gymnasium.wrappers.TransformObservation with numpy.moveaxis(seen, -1, 0)"
        )
    if len(shape) == 1 or is_image(space):
        return
    if sees == "flat" or len(shape) not in (2, 3):
        way = "only flat ones, a Box of one dimension, are learned from here"
        raise Refused(f"{has}; {way} (gymnasium.wrappers.FlattenObservation may help)")
    way = "only flat ones and pictures, (channels or frames, height, width) of bytes (uint8), are"
    help = "FrameStackObservation" if len(shape) == 2 else "TransformObservation"
    raise Refused(f"{has}; {way} learned from here (gymnasium.wrappers.{help} may help)")


def _look_at_reward(name: str, reward: Any) -> None:
    text = f"env {name!r}: step() gives the reward {reward!r}"
    try:
        number = float(reward) if not isinstance(reward, (str, bytes)) else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise Refused(f"{text}, of type {type(reward).__name__}; it must be a number")
    if math.isfinite(number) and abs(number) > LARGEST:
        raise Refused(f"{text}; float32 ends at {LARGEST:.2g}: scale it")


def is_image(space: Any) -> bool:
    """Whether observations are pictures: bytes, (channels or frames, height, width)."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def _look_at_actions(name: str, space: Any, acts: str) -> tuple[int, Floats, Floats]:
    none = np.zeros(0, np.float32)
    if isinstance(space, gym.spaces.Box) and 0 in space.shape:
        raise Refused(f"env {name!r} has actions {space}; there is nothing to choose")
    if isinstance(space, gym.spaces.Discrete) and acts != "box":
        return int(space.n), none, none
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and acts != "discrete":
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise Refused(f"env {name!r} has actions {space}; only a finite box can be filled")
        return 0, space.low.astype(np.float32), space.high.astype(np.float32)
    want = {
        "discrete": "only Discrete ones are chosen here",
        "box": "only a flat Box of numbers is acted in here",
        "any": "only Discrete ones and a flat Box of numbers are acted in here",
    }
    raise Refused(f"env {name!r} has actions {space}; {want[acts]}")


def _draw(space: Any, chooser: np.random.Generator) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start + chooser.integers(space.n))
    return chooser.uniform(space.low, space.high).astype(space.dtype)


# state


def survives(env: Env, make: Callable[[], Env]) -> bool:
    """Whether a new environment goes on exactly like `env` once it has loaded its state.

    Raises what `env` raises when it is played.
    """
    chooser = np.random.default_rng(0)
    first, then = (
        [_draw(env.action_space, chooser) for _ in range(_TRIED_STEPS)] for _ in range(2)
    )
    env.reset(seed=1)
    _roll(env, first)
    try:
        data = pickle.dumps(state_of(env))
        with contextlib.closing(make()) as copy:
            copy.reset(seed=2)
            set_state(copy, pickle.loads(data))
            with preserved_global_rng():  # `Episodes.save` keeps those too
                expected = _roll(env, then)
            return _roll(copy, then) == expected
    except Exception:  # whatever such a copy raises, it cannot be trusted
        return False


def _roll(env: Env, actions: list[Any]) -> list[tuple[Any, ...]]:
    trace: list[tuple[Any, ...]] = []
    for action in actions:
        seen, reward, terminated, truncated, _ = env.step(action)
        trace.append((np.asarray(seen).tobytes(), float(reward), terminated, truncated))
        if terminated or truncated:
            trace.append((np.asarray(env.reset()[0]).tobytes(),))
    return trace


def state_of(env: Env) -> list[dict[str, Any]]:
    """What each layer holds, the outermost first. It can be pickled where the state can be kept."""
    return [_of_layer(layer) for layer in _layers(env)]


def set_state(env: Env, state: list[dict[str, Any]]) -> None:
    """Put what `state_of` gave into another environment of the same name."""
    for layer, held in zip(_layers(env), state, strict=True):
        held = dict(held)
        for simulator in _SIMULATORS:
            kept = held.pop(simulator.key, None)
            if kept is not None:
                simulator.put(layer, kept)
        vars(layer).update(held)


def _layers(env: Env) -> Iterator[Any]:
    layer: Any = env
    while layer is not None:
        yield layer
        layer = layer.env if isinstance(layer, gym.Wrapper) else None


def _of_layer(layer: Any) -> dict[str, Any]:
    skipped = {"env", "spec"} if isinstance(layer, gym.Wrapper) else {"spec"}
    kept: dict[str, Any] = {}
    for simulator in _SIMULATORS:
        if simulator.is_in(layer):
            kept[simulator.key] = simulator.get(layer)
            skipped |= simulator.rebuilt
    held = {name: value for name, value in vars(layer).items() if name not in skipped}
    return {**held, **kept}


@dataclass(frozen=True)
class _Simulator:
    """A simulator whose state is not in Python objects, behind attributes that are rebuilt."""

    key: str
    rebuilt: frozenset[str]
    is_in: Callable[[Any], bool]
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]


def _is_mujoco(layer: Any) -> bool:
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(getattr(layer, "data", None), mujoco.MjData)


def _get_mujoco(layer: Any) -> bytes:
    # the whole of it: what mj_getState names is not enough where a reward looks at contacts or at
    # positions of the step before (Ant, Humanoid)
    return pickle.dumps(layer.data)


def _put_mujoco(layer: Any, kept: bytes) -> None:
    import mujoco

    mujoco.mj_copyData(layer.data, layer.model, pickle.loads(kept))


_SIMULATORS = (
    _Simulator(
        "(mujoco)",
        frozenset({"data", "model", "mujoco_renderer"}),
        _is_mujoco,
        _get_mujoco,
        _put_mujoco,
    ),
    _Simulator("(ale)", frozenset({"ale"}), atari.has_ale, atari.ale_state, atari.set_ale_state),
)
