"""Environments: refused by name, and kept where they can be."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402  puts agents/ on the path

# isort: split
import atari  # noqa: E402
import environments  # noqa: E402
from options import Refused  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CartPol-v1", "env 'CartPol-v1' cannot be made .did you mean 'CartPole-v1'"),
        ("CartPole-v7", "env 'CartPole-v7' cannot be made"),
        ("nowhere:Walk-v0", "env 'nowhere:Walk-v0': No module named 'nowhere'"),
        ("walks:Wolk-v0", "did you mean 'Walk-v0'"),
        ("walks:Old-v0", "env 'walks:Old-v0' does not follow gymnasium's API"),
        ("walks:Image-v0", r"observations Box\(0, 255, \(8, 8, 3\)"),
        ("walks:Table-v0", "observations Dict"),
        ("walks:Many-v0", "actions MultiDiscrete"),
        ("walks:Smooth-v0", "actions Box"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        environments.look(name)


def test_module_is_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Here-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    facts = environments.look("only_here:Here-v0")
    assert (facts.shape, facts.actions, facts.exact) == ((4,), 2, True)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("Walk", True),
        ("Shared", True),
        ("Easy", True),
        ("Slow", True),
        ("Open", False),
        ("Forgetful", True),
    ],
)
def test_only_environments_whose_copy_goes_on_alike_are_kept(name: str, exact: bool) -> None:
    assert environments.look(f"walks:{name}-v0").exact is exact


# real simulators


REAL = [
    ("CartPole-v1", ""), ("MountainCar-v0", ""), ("Pendulum-v1", ""), ("Acrobot-v1", ""),
    ("HalfCheetah-v5", "mujoco"), ("Hopper-v5", "mujoco"), ("Ant-v5", "mujoco"),
    ("ALE/Pong-v5", "ale_py"), ("ALE/Breakout-v5", "ale_py"),
]  # fmt: skip
real = pytest.mark.parametrize(("name", "package"), REAL)


def needs(*modules: str) -> None:
    for module in filter(None, modules):
        pytest.importorskip(module, reason=f"left out: {module}: not installed")
    if "ale_py" in modules:
        pytest.importorskip("cv2", reason="left out: cv2: not installed")


def drawn(env: Any, chooser: Any) -> Any:
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(chooser.integers(space.n))
    return chooser.uniform(space.low, space.high).astype(space.dtype)


def roll(env: Any, chooser: Any, steps: int) -> list[tuple[Any, ...]]:
    """Everything that `steps` of drawn actions show; a new episode at each end, and at the 75th."""
    trace: list[tuple[Any, ...]] = []
    for t in range(steps):
        seen, reward, terminated, truncated, _ = env.step(drawn(env, chooser))
        trace.append((np.asarray(seen).tobytes(), float(reward), terminated, truncated))
        if terminated or truncated or t == 75:
            trace.append((np.asarray(env.reset()[0]).tobytes(),))
    return trace


def rolled(name: str, seed: int, steps: int) -> Any:
    env = environments.make_env(name, training=True)
    env.reset(seed=seed)
    roll(env, np.random.default_rng(seed), steps)
    return env


@real
def test_a_kept_simulator_goes_on_exactly(name: str, package: str) -> None:
    needs(package)
    assert environments.look(name, acts="any", sees="any").exact
    for seed in range(2):
        first, second = rolled(name, seed, 60 + seed), rolled(name, 99, 13)
        with contextlib.closing(first), contextlib.closing(second):
            kept = pickle.dumps(environments.state_of(first))
            expected = roll(first, np.random.default_rng(7), 150)
            environments.set_state(second, pickle.loads(kept))
            assert roll(second, np.random.default_rng(7), 150) == expected


def test_a_kept_game_repeats_the_same_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a game does again by itself, nine times of ten here, is in no copy of the emulator."""
    needs("ale_py")
    atari.register()
    sticky = gymnasium.spec("ALE/Pong-v5").kwargs
    monkeypatch.setitem(sticky, "repeat_action_probability", 0.9)
    up, down = (environments.make_env("ALE/Pong-v5", training=True) for _ in range(2))
    with contextlib.closing(up), contextlib.closing(down):
        for env, action in ((up, 2), (down, 3)):
            env.reset(seed=1)
            for _ in range(80):
                env.step(action)
        kept = pickle.dumps(environments.state_of(up))
        environments.set_state(down, pickle.loads(kept))
        for _ in range(12):
            assert (up.step(0)[0] == down.step(0)[0]).all()


@pytest.mark.parametrize(
    ("name", "package"), [("Hopper-v5", "mujoco"), ("ALE/Breakout-v5", "ale_py")]
)
def test_a_plain_pickle_holds_a_fresh_simulator_and_is_not_trusted(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads without a word: this is why a simulator's state is kept apart, and tried."""
    needs(package)
    first = rolled(name, 0, 60)
    with contextlib.closing(first):
        copy = pickle.loads(pickle.dumps(first))
        with contextlib.closing(copy):
            copy.reset(seed=0)
            chooser = np.random.default_rng
            assert roll(copy, chooser(7), 150) != roll(first, chooser(7), 150)
    monkeypatch.setattr(environments, "state_of", lambda env: env)
    monkeypatch.setattr(environments, "set_state", lambda env, kept: vars(env).update(vars(kept)))
    assert not environments.look(name, acts="any", sees="any").exact


def test_a_simulator_without_a_copy_of_its_state_is_found_out() -> None:
    needs("Box2D")
    assert not environments.look("LunarLander-v3").exact


def test_states_leave_the_environment_they_were_taken_of_alone() -> None:
    needs("mujoco")
    one, other = rolled("Hopper-v5", 0, 40), rolled("Hopper-v5", 0, 40)
    with contextlib.closing(one), contextlib.closing(other):
        environments.state_of(one)
        chooser = np.random.default_rng
        assert roll(one, chooser(7), 60) == roll(other, chooser(7), 60)


@pytest.mark.parametrize(
    ("name", "package", "shape", "actions", "low", "high"),
    [
        ("CartPole-v1", "", (4,), 2, [], []),
        ("Pendulum-v1", "", (3,), 0, [-2.0], [2.0]),
        ("HalfCheetah-v5", "mujoco", (17,), 0, [-1.0] * 6, [1.0] * 6),
        ("Ant-v5", "mujoco", (105,), 0, [-1.0] * 8, [1.0] * 8),
        ("Humanoid-v5", "mujoco", (348,), 0, [-0.4] * 17, [0.4] * 17),
        ("ALE/Pong-v5", "ale_py", (4, 84, 84), 6, [], []),
        ("ALE/Breakout-v5", "ale_py", (4, 84, 84), 4, [], []),
    ],
)
def test_an_agent_is_told_what_it_sees_and_may_do(
    name: str, package: str, shape: Any, actions: int, low: list[float], high: list[float]
) -> None:
    needs(package)
    facts = environments.look(name, acts="any", sees="any")
    assert (facts.shape, facts.actions) == (shape, actions)
    assert facts.image is (len(shape) == 3) and facts.numbers == np.prod(shape)
    assert np.allclose(facts.low, low) and np.allclose(facts.high, high)
    assert facts.low.dtype == np.float32
    assert facts.dtype == (np.uint8 if facts.image else np.float32)


# refused


class Boundless(gymnasium.Env):  # type: ignore[misc, type-arg]
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class NoFloor(Boundless):
    action_space = gymnasium.spaces.Box(-np.inf, 1, (1,), np.float32)


class NoCeiling(Boundless):
    action_space = gymnasium.spaces.Box(-1, np.inf, (1,), np.float32)


class Twice(Boundless):
    action_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)


class Tall(Boundless):
    observation_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)


@pytest.fixture
def refused_ones() -> Any:
    made = {f"{one.__name__}-v0": one for one in (Boundless, NoFloor, NoCeiling, Twice, Tall)}
    for name, one in made.items():
        gymnasium.register(name, one)
    yield
    for name in made:
        gymnasium.registry.pop(name)


@pytest.mark.usefixtures("refused_ones")
@pytest.mark.parametrize("acts", ["discrete", "box", "any"])
@pytest.mark.parametrize("sees", ["flat", "any"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("walks:Many-v0", r"^env 'walks:Many-v0' has actions MultiDiscrete\(\[2 2\]\); only "),
        ("walks:Table-v0", r"^env 'walks:Table-v0' has observations Dict\('a': Discrete\(2\)\); "),
        ("walks:Old-v0", "^env 'walks:Old-v0' (does not follow gymnasium's API|has actions)"),
        ("Boundless-v0", "^env 'Boundless-v0' has actions Box.*inf"),
        ("NoFloor-v0", "^env 'NoFloor-v0' has actions Box.*inf"),
        ("NoCeiling-v0", "^env 'NoCeiling-v0' has actions Box.*inf"),
        ("Twice-v0", "^env 'Twice-v0' has actions Box"),
        ("Tall-v0", "^env 'Tall-v0' has observations Box.*; only flat ones"),
    ],
)
def test_what_no_agent_takes_is_refused_in_one_sentence(
    name: str, text: str, acts: str, sees: str
) -> None:
    with pytest.raises(Refused, match=text) as refused:
        environments.look(name, acts=acts, sees=sees)
    assert len(str(refused.value).splitlines()) == 1 and not str(refused.value).endswith(".")


@pytest.mark.parametrize(("name", "acts"), [("CartPole-v1", "box"), ("Pendulum-v1", "discrete")])
def test_an_agent_for_other_actions_says_so(name: str, acts: str) -> None:
    with pytest.raises(Refused, match=f"^env '{name}' has actions "):
        environments.look(name, acts=acts)


def test_an_environment_whose_package_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    """In a process of its own, where none of the packages can be imported."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("ale_py", "mujoco", "Box2D")))
sys.path.insert(0, {str(AGENTS)!r})
import environments, options
for name in ("ALE/Pong-v5", "Hopper-v5", "LunarLander-v3"):
    try:
        environments.look(name, acts="any", sees="any")
    except options.Refused as problem:
        print(problem)
"""
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert told.stderr == "" and told.returncode == 0
    atari, mujoco, box2d = told.stdout.splitlines()
    assert atari == "env 'ALE/Pong-v5': import of ale_py halted; None in sys.modules"
    assert mujoco.startswith("env 'Hopper-v5' cannot be made: MuJoCo is not installed")
    assert box2d.startswith("env 'LunarLander-v3' cannot be made: Box2D is not installed")


def test_a_game_without_opencv_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ale_py")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(Refused, match="^env 'ALE/Pong-v5': .*opencv"):
        environments.look("ALE/Pong-v5", acts="any", sees="any")


# closed


class Watched(gymnasium.Env):  # type: ignore[misc, type-arg]
    """Counts how many are open; broken in the way it is told."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    open, broken = 0, ""

    def __init__(self) -> None:
        type(self).open += 1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.broken == "reset":
            raise ValueError("broken")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.broken == "step":
            raise RuntimeError("broken")
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        type(self).open -= 1


@pytest.mark.parametrize("broken", ["", "reset", "step"])
def test_looking_leaves_no_environment_open(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register("Watched-v0", Watched)
    monkeypatch.setattr(Watched, "broken", broken)
    monkeypatch.setattr(Watched, "open", 0)
    try:
        with contextlib.suppress(Refused, RuntimeError):
            environments.look("Watched-v0")
    finally:
        gymnasium.registry.pop("Watched-v0")
    assert Watched.open == 0
