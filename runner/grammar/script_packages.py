"""From the modules that a script imports to the packages that hold them (pure)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from runner.grammar.requirements import lines_of, name_of, problem_of

IN_IMAGE = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "functorch", "triton"),
        *("numpy", "gymnasium", "pygame", "cv2", "tensorboard"),
        *("jupyterlab", "IPython", "supervisor", "setuptools", "pip", "pkg_resources"),
    }
)
"""Modules that every worker's image has (provisioning/requirements.txt, and the base's torch)."""
_NAMED = {
    "Box2D": "box2d-py",
    "PIL": "pillow",
    "absl": "absl-py",
    "ale_py": "ale-py",
    "attr": "attrs",
    "dm_control": "dm-control",
    "dm_env": "dm-env",
    "highway_env": "highway-env",
    "hydra": "hydra-core",
    "huggingface_hub": "huggingface-hub",
    "huggingface_sb3": "huggingface-sb3",
    "imblearn": "imbalanced-learn",
    "ml_collections": "ml-collections",
    "pytorch_lightning": "pytorch-lightning",
    "sb3_contrib": "sb3-contrib",
    "shimmy": "shimmy",
    "simple_parsing": "simple-parsing",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "stable_baselines3": "stable-baselines3",
    "supersuit": "SuperSuit",
    "yaml": "pyyaml",
}
_SAME = frozenset(
    {
        *("accelerate", "click", "cloudpickle", "d4rl", "datasets", "dill", "draccus", "einops"),
        *("envpool", "fire", "flax", "gym", "h5py", "imageio", "jax", "joblib", "jsonargparse"),
        *("lightning", "loguru", "matplotlib", "minigrid", "mlflow", "moviepy", "mujoco"),
        *("networkx", "numba", "omegaconf", "optax", "optuna", "pandas", "peft", "pettingzoo"),
        *("plotly", "procgen", "psutil", "pyrallis", "ray", "requests", "rich", "safetensors"),
        *("scipy", "seaborn", "tensorboardX", "tensordict", "termcolor", "torchrl", "tqdm"),
        *("transformers", "typer", "tyro", "wandb", "zarr"),
    }
)
"""Modules whose package has their name."""
OLD_GYMNASIUM = "gymnasium<1"


@dataclass(frozen=True)
class Packages:
    """What a job's file shall ask for."""

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    """Those of modules that are imported on some paths only."""
    unknown: tuple[str, ...]
    """Modules that are needed, and of which nobody here knows the package."""


def find_packages(
    imports: Mapping[str, bool],
    installed: Mapping[str, str],
    listed: Mapping[str, str],
    *,
    old_gymnasium: bool = False,
) -> Packages:
    """The packages of imported modules, beside the standard library's and the image's own.

    installed: module to package, in the environment of whoever asks. listed: package to the line
    that the project's own requirements have for it.
    """
    needed: list[str] = []
    optional: list[str] = []
    unknown: list[str] = []
    for module in sorted(imports, key=str.lower):
        if module in sys.stdlib_module_names or module in IN_IMAGE or module == "runner":
            continue
        package = package_of(module, installed)
        if package is None:
            (unknown if imports[module] else optional).append(module)
        else:
            line = listed.get(name_of(package), package)
            (needed if imports[module] else optional).append(line)
    if old_gymnasium:
        line = listed.get("gymnasium", OLD_GYMNASIUM)
        needed.append(line if line != "gymnasium" else OLD_GYMNASIUM)
    return Packages(tuple(sorted(needed, key=str.lower)), tuple(optional), tuple(unknown))


def package_of(module: str, installed: Mapping[str, str]) -> str | None:
    """The package that holds a module; never a guess by its mere name."""
    return _NAMED.get(module) or (module if module in _SAME else installed.get(module))


def listed_in(text: str) -> dict[str, str]:
    """Package to line, of what a requirements file asks for and may be asked for here."""
    found = {}
    for _, line in lines_of(text):
        name = name_of(line)
        if problem_of(line) is None and re.search(r"[<>=~@]", line):
            found[name] = line
    return found


def has_version(line: str) -> bool:
    """Whether a requirement says more than a package's name: which version, or from where."""
    return re.search(r"[<>=~!@]", line.partition(";")[0]) is not None
