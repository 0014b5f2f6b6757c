"""Videos of greedy episodes, made without a display.

H.264 in mp4, which every browser plays, by imageio-ffmpeg: one wheel with the encoder in it, which
runs as a process of its own, so that its end costs no more than the video. gymnasium's own recorder
needs moviepy besides, with half a dozen packages more, and holds an episode's frames in memory.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atari
import gymnasium as gym
import numpy as np
from environments import Env, make_env
from evaluation import Choose, play_greedy
from numpy.typing import NDArray
from seeds import SEEDS_FRESH

MOST_FRAMES = 10_000  # of one video; what an endless episode does later is not shown
ATARI_FPS = 60 // atari.SKIP  # one frame for each action


class NoVideo(Exception):
    """None can be made here, and why."""


def record(
    name: str,
    choose: Choose,
    folder: Path,
    *,
    label: str,
    count: int,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[Path]:
    """Film the first `count` episodes that `play_greedy` plays with this seed.

    Returns `folder/LABEL-episode-N.mp4`, each of which appears when it is whole. Raises NoVideo
    when an encoder or a way to render without a display is missing.
    """
    for left in folder.glob("*.mp4.part"):  # of an attempt that was killed
        left.unlink(missing_ok=True)
    paths = [folder / f"{label}-episode-{i}.mp4" for i in range(count)]
    waiting = iter(paths)
    try:
        import imageio_ffmpeg  # noqa: F401  before anything is played

        with contextlib.closing(make_env(name)) as env:
            if "rgb_array" not in (env.metadata.get("render_modes") or ()):
                raise NoVideo(f"env {name!r} draws no pictures (rgb_array)")
        _render_nowhere()
        folder.mkdir(parents=True, exist_ok=True)
        play_greedy(
            name, choose, episodes=count, seed=seed, stream=SEEDS_FRESH, stop=stop,
            make=lambda each: Filmed(make_env(each, render="rgb_array"), waiting),
        )  # fmt: skip
    except Exception as error:  # drivers, libraries and encoders fail in as many ways as there are
        missing = getattr(error, "name", None) == "imageio_ffmpeg"
        way_out = "; pip install imageio-ffmpeg" if missing else ""
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise NoVideo(f"no videos: {line}{way_out}") from error
    return [path for path in paths if path.is_file()]


def _render_nowhere() -> None:
    """Have pygame and MuJoCo draw into memory, unless the user has said where."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    # mujoco was imported by then: it would refuse to be with a backend that is not there
    backend = "egl" if ctypes.util.find_library("EGL") else "osmesa"
    os.environ.setdefault("MUJOCO_GL", backend)


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Writes each episode to the next of `paths`, and shows nothing more once there is none."""

    def __init__(self, env: Env, paths: Iterator[Path]) -> None:
        super().__init__(env)
        self._paths, self._film = paths, None
        game = atari.has_ale(env.unwrapped)
        self._fps = ATARI_FPS if game else int(env.metadata.get("render_fps") or 30)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """A new episode, and a new video."""
        given = self.env.reset(**kwargs)
        self._drop()
        path = next(self._paths, None)
        if path is not None:
            self._film = Film(path, self._fps)
            self._film.add(self.env.render())
        return given

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """An action, and the frame it leads to."""
        given = self.env.step(action)
        if self._film is not None:
            self._film.add(self.env.render())
            if given[2] or given[3] or self._film.frames >= MOST_FRAMES:
                self._film.finish()
                self._film = None
        return given

    def close(self) -> None:
        """End the environment; an episode that has not ended leaves no video."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._film is not None:
            self._film.drop()
            self._film = None


class Film:
    """One mp4 being made, in `NAME.mp4.part` until it is whole."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path, self.part = path, path.with_name(path.name + ".part")
        self.fps, self.frames = fps, 0
        self._writer: Any = None

    def add(self, frame: NDArray[np.uint8] | Any) -> None:
        """The next frame, (height, width, 3). Raises OSError, ValueError."""
        if getattr(frame, "ndim", 0) != 3 or frame.dtype != np.uint8:
            raise ValueError("the environment renders no picture as rgb_array")
        height, width = (length // 2 * 2 for length in frame.shape[:2])
        frame = frame[:height, :width]  # H.264 takes even sizes only
        if self._writer is None:
            from imageio_ffmpeg import write_frames

            # one thread, for others' runs share the host
            self._writer = write_frames(
                str(self.part), (width, height), fps=self.fps, codec="libx264",
                macro_block_size=1, ffmpeg_log_level="error",
                output_params=["-f", "mp4", "-threads", "1"],
            )  # fmt: skip
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(frame))
        self.frames += 1

    def finish(self) -> None:
        """Put it in its place. Raises OSError when the file does not hold every frame."""
        from imageio_ffmpeg import count_frames_and_secs

        self._end()
        try:
            found = count_frames_and_secs(str(self.part))[0]
        except RuntimeError as error:
            raise OSError(f"{self.part.name} cannot be read back") from error
        if found != self.frames:
            raise OSError(f"{self.part.name} holds {found} of {self.frames} frames")
        self.part.replace(self.path)

    def drop(self) -> None:
        """Forget it."""
        self._end()
        self.part.unlink(missing_ok=True)

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
