"""Videos of greedy episodes: whole or not there, and never in the way."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402

# isort: split
import environments  # noqa: E402
import evaluation  # noqa: E402
import video  # noqa: E402
from seeds import SEEDS_FRESH  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")
encoder = pytest.mark.skipif(
    importlib.util.find_spec("imageio_ffmpeg") is None,
    reason="left out: imageio_ffmpeg: not installed",
)


@pytest.fixture(autouse=True)
def _no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """No display, and what video.py sets is undone."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def still(seen: Any) -> Any:
    return np.zeros(len(seen), np.int64)


def record(
    name: str, folder: Path, count: int = 1, choose: Any = still, **given: Any
) -> list[Path]:
    return video.record(name, choose, folder, label="step-7", count=count, seed=0, **given)


def read(path: Path) -> tuple[tuple[int, int], float, list[Any]]:
    """Size, frames a second and frames of an mp4 of H.264, as the encoder's program decodes it."""
    import imageio_ffmpeg

    words = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo"]
    told = subprocess.run([*words, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True)
    found = re.search(r"Video: h264 .* (\d+)x(\d+)[ ,].* ([0-9.]+) fps", told.stderr.decode())
    assert found is not None
    width, height = int(found[1]), int(found[2])
    frames = np.frombuffer(told.stdout, np.uint8).reshape(-1, height, width, 3)
    return (width, height), float(found[3]), list(frames)


@encoder
def test_the_episodes_filmed_are_those_that_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="left out: pygame: not installed")
    paths = record("CartPole-v1", tmp_path / "videos", count=3)
    assert [path.name for path in paths] == [f"step-7-episode-{i}.mp4" for i in range(3)]
    assert sorted((tmp_path / "videos").iterdir()) == paths
    returns = evaluation.play_greedy("CartPole-v1", still, episodes=3, seed=0, stream=SEEDS_FRESH)
    assert returns is not None
    for path, total in zip(paths, returns, strict=True):
        size, fps, frames = read(path)
        assert (size, fps) == ((600, 400), 50)
        assert len(frames) == total + 1  # one a step, and the first
        assert frames[0].mean() > 100 and (frames[0] != frames[-1]).any()
    assert "SDL_VIDEODRIVER" in os.environ


@encoder
@pytest.mark.parametrize(
    ("name", "package", "size", "fps"),
    [
        ("Pendulum-v1", "pygame", (500, 500), 30),
        ("HalfCheetah-v5", "mujoco", (480, 480), 20),
        ("ALE/Pong-v5", "ale_py", (160, 210), 15),
        ("LunarLander-v3", "Box2D", (600, 400), 50),
    ],
)
def test_each_family_is_rendered_without_a_display(
    name: str, package: str, size: Any, fps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason=f"left out: {package}: not installed")
    monkeypatch.setattr(video, "MOST_FRAMES", 12)
    facts = environments.look(name, acts="any", sees="any")

    def nothing(seen: Any) -> Any:
        n = len(seen)
        return still(seen) if facts.actions else np.zeros((n, len(facts.low)), np.float32)

    moves = iter(range(30))
    try:
        (path,) = record(name, tmp_path, choose=nothing, stop=lambda: next(moves, None) is None)
    except video.NoVideo as problem:
        if package != "mujoco":
            raise
        pytest.skip(f"left out: no OpenGL without a display: {problem}")
    found_size, found_fps, frames = read(path)
    assert (found_size, found_fps, len(frames)) == (size, fps, 12)
    assert frames[0].std() > 1  # something is to be seen


def test_a_missing_encoder_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(video.NoVideo, match="^no videos: .*; pip install imageio-ffmpeg$") as none:
        record("CartPole-v1", tmp_path)
    assert len(str(none.value).splitlines()) == 1 and not list(tmp_path.glob("*.mp4*"))


@encoder
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("walks:Walk-v0", r"env 'walks:Walk-v0' draws no pictures \(rgb_array\)$"),
        ("walks:Nowhere-v0", "env 'walks:Nowhere-v0' cannot be made"),
    ],
)
def test_an_environment_that_cannot_be_rendered_is_no_error(
    name: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(video.NoVideo, match=f"^no videos: {text}") as none:
        record(name, tmp_path)
    assert len(str(none.value).splitlines()) == 1 and not list(tmp_path.glob("*.mp4*"))


class Drawn(gymnasium.Env):  # type: ignore[misc, type-arg]
    """Episodes of five steps, whose pictures fail as they are told to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    picture: Any = np.full((9, 11, 3), 200, np.uint8)
    fails_at, length = 10_000, 5

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.t = render_mode, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t >= self.length, False, {}

    def render(self) -> Any:
        if self.t >= self.fails_at:
            raise RuntimeError("no GL\nand more of it")
        return self.picture


@pytest.fixture
def drawn() -> Any:
    gymnasium.register("Drawn-v0", Drawn)
    yield Drawn
    gymnasium.registry.pop("Drawn-v0")


@encoder
def test_a_picture_of_any_size_will_do(drawn: Any, tmp_path: Path) -> None:
    (path,) = record("Drawn-v0", tmp_path)
    size, fps, frames = read(path)
    assert (size, fps, len(frames)) == ((10, 8), 10, 6)


@encoder
@pytest.mark.parametrize(
    ("what", "value", "text"),
    [
        ("fails_at", 3, "^no videos: [^\n]*no GL"),
        ("picture", None, "renders no picture"),
        ("picture", [np.zeros((8, 8, 3), np.uint8)], "renders no picture"),
        ("picture", np.zeros((8, 8, 3)), "renders no picture"),
    ],
)
def test_half_a_video_is_not_left(
    what: str, value: Any, text: str, drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, what, value)
    with pytest.raises(video.NoVideo, match=text):
        record("Drawn-v0", tmp_path)
    assert not list(tmp_path.glob("*.mp4*"))


@encoder
def test_a_stop_in_the_middle_leaves_only_what_is_whole(drawn: Any, tmp_path: Path) -> None:
    asked = iter(range(8))
    paths = record("Drawn-v0", tmp_path, count=1, stop=lambda: next(asked, None) == 3)
    assert paths == [] and not list(tmp_path.glob("*.mp4*"))


@encoder
def test_a_long_episode_is_cut(drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MOST_FRAMES", 20)
    monkeypatch.setattr(drawn, "length", 50)
    (path,) = record("Drawn-v0", tmp_path)
    assert len(read(path)[2]) == 20


@encoder
def test_more_episodes_than_are_played_side_by_side(
    drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "PARALLEL_EPISODES", 2)
    assert len(record("Drawn-v0", tmp_path, count=5)) == 5


@encoder
def test_what_a_killed_attempt_left_is_removed_and_a_repeat_replaces(
    drawn: Any, tmp_path: Path
) -> None:
    (tmp_path / "step-7-episode-3.mp4.part").write_bytes(b"half")
    (path,) = record("Drawn-v0", tmp_path)
    before = path.read_bytes()
    path.write_bytes(b"other")
    record("Drawn-v0", tmp_path)
    assert path.read_bytes() == before and list(tmp_path.glob("*.mp4*")) == [path]


@encoder
def test_a_full_disk_is_told_and_leaves_nothing(
    drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-7-episode-0.mp4.part").symlink_to("/dev/full")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # keep it for the encoder to find
    with pytest.raises(video.NoVideo, match="^no videos: "):
        record("Drawn-v0", tmp_path)
    assert not list(tmp_path.glob("*.mp4"))


@encoder
def test_the_user_s_own_backend_is_kept(
    drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")
    record("Drawn-v0", tmp_path)
    assert (os.environ["MUJOCO_GL"], os.environ["SDL_VIDEODRIVER"]) == ("osmesa", "offscreen")


def test_a_mujoco_without_any_opengl_costs_the_videos_alone(tmp_path: Path) -> None:
    """In a process of its own, whose renderer finds no library: what was measured stands."""
    pytest.importorskip("mujoco", reason="left out: mujoco: not installed")
    program = f"""
import sys
sys.path.insert(0, {str(AGENTS)!r})
import numpy as np, evaluation, video
from pathlib import Path
sys.modules["mujoco.egl"] = sys.modules["mujoco.osmesa"] = sys.modules["mujoco.glfw"] = None
choose = lambda seen: np.zeros((len(seen), 3), np.float32)
print(evaluation.play_greedy("Hopper-v5", choose, episodes=1, seed=0, stream=3)[0] > 0)
try:
    video.record("Hopper-v5", choose, Path("."), label="x", count=1, seed=0)
except video.NoVideo as problem:
    print(problem)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    measured, problem = told.stdout.splitlines()
    assert told.returncode == 0 and measured == "True" and problem.startswith("no videos: ")
    assert not list(tmp_path.glob("*.mp4*"))


@encoder
def test_a_file_that_lacks_a_frame_is_not_put_in_its_place(tmp_path: Path) -> None:
    film = video.Film(tmp_path / "one.mp4", 10)
    for _ in range(3):
        film.add(np.zeros((8, 8, 3), np.uint8))
    film.frames += 1
    with pytest.raises(OSError, match=r"one.mp4.part holds 3 of 4 frames"):
        film.finish()
    film.drop()
    assert list(tmp_path.glob("*.mp4*")) == []
