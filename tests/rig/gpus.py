"""The rig's cards, seen from a test: what there is, what is held, and what goes wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.rig.fake_nvidia_smi import IDLE_MIB, read_holders

TOOL = Path(__file__).with_name("fake_nvidia_smi.py")
HOOK = Path(__file__).with_name("nvidia_hook.py")
HOLD = Path(__file__).with_name("hold_gpu.py")


def place_tool(bin_folder: Path, folder: Path) -> None:
    """Put a `nvidia-smi` for the cards of `folder` into a folder of a PATH."""
    bin_folder.mkdir(parents=True, exist_ok=True)
    tool = bin_folder / "nvidia-smi"
    shutil.copyfile(TOOL, tool)
    tool.chmod(0o755)
    (bin_folder / "nvidia-smi.json").write_text(json.dumps({"folder": str(folder)}))


def place_hook(folder: Path, gpus: Path) -> None:
    """Put Docker's side of it into `folder`, to be on dockerd's PATH."""
    place_tool(folder, gpus)
    hook = folder / "nvidia-container-runtime-hook"
    shutil.copyfile(HOOK, hook)
    hook.chmod(0o755)


def remove_tool(bin_folder: Path) -> None:
    for name in ("nvidia-smi", "nvidia-smi.json"):
        (bin_folder / name).unlink(missing_ok=True)


class FakeGpus:
    """The cards of one machine; every change is seen at the next `nvidia-smi`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self._machine: dict[str, object] = {"cards": []}
        self._holders: list[subprocess.Popen[str]] = []

    @property
    def uuids(self) -> list[str]:
        return [str(card["uuid"]) for card in self._cards]

    @property
    def _cards(self) -> list[dict[str, object]]:
        cards = self._machine["cards"]
        assert isinstance(cards, list)
        return cards

    def set_cards(
        self,
        count: int,
        *,
        name: str = "NVIDIA A10",
        memory_total_mib: int = 23028,
        driver_version: str = "550.54.15",
        compute_cap: str = "8.6",
    ) -> None:
        """Make a machine with `count` alike cards, all idle."""
        shutil.rmtree(self.folder / "cards", ignore_errors=True)
        self._machine = {"cards": []}
        for index in range(count):
            uuid = f"GPU-{index:08x}-0000-4000-8000-{index:012x}"
            place = self.folder / "cards" / uuid
            place.mkdir(parents=True)
            place.chmod(0o777)  # holders are of any account
            card = {"index": index, "uuid": uuid, "name": name, "compute_cap": compute_cap}
            card.update(memory_total_mib=memory_total_mib, driver_version=driver_version)
            self._cards.append(card)
        self._write()

    def set_cell(self, index: int, field: str, text: str) -> None:
        """Print `text` (say "[N/A]") for one field of one card."""
        cells = self._cards[index].setdefault("cells", {})
        assert isinstance(cells, dict)
        cells[field] = text
        self._write()

    def set_app_cell(self, field: str, text: str) -> None:
        """Print `text` for one field of every process."""
        cells = self._machine.setdefault("app_cells", {})
        assert isinstance(cells, dict)
        cells[field] = text
        self._write()

    def set_unknown_fields(self, *fields: str) -> None:
        """Make the driver too old to know these."""
        self._machine["unknown_fields"] = list(fields)
        self._write()

    def fail(self, text: str, status: int = 255) -> None:
        """Let every call fail, e.g. with `Failed to initialize NVML: Unknown Error`."""
        self._machine["failure"] = {"text": text, "status": status}
        self._write()

    def slow_down(self, delay_s: float) -> None:
        """Let every call take so long; hundreds of seconds are a driver that hangs."""
        self._machine["delay_s"] = delay_s
        self._write()

    def heal(self) -> None:
        """No failure and no delay any more."""
        self._machine.pop("failure", None)
        self._machine.pop("delay_s", None)
        self._write()

    def remove_driver(self) -> None:
        """As a machine whose driver is not loaded: exit 9, and `--gpus` refuses."""
        (self.folder / "cards.json").unlink(missing_ok=True)

    def _write(self) -> None:
        new = self.folder / "cards.json.new"
        new.write_text(json.dumps(self._machine))
        new.chmod(0o644)
        new.replace(self.folder / "cards.json")

    def used_mib(self, index: int) -> int:
        """What `nvidia-smi` would say is used of a card; 3 when nobody holds any."""
        held = read_holders(str(self.folder), self.uuids[index])
        return IDLE_MIB + sum(mib for _, _, mib, _ in held)

    def hold(self, index: int, mib: int) -> subprocess.Popen[str]:
        """A stranger's process that holds memory until it is killed or the test ends."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(HOLD), str(mib)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={"RIG_GPUS": str(self.folder), "CUDA_VISIBLE_DEVICES": self.uuids[index]},
        )
        self._holders.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("holding"), f"could not hold {mib} MiB of card {index}: {said!r}"
        return process

    def close(self) -> None:
        """End the strangers and take the cards away."""
        for process in self._holders:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._holders.clear()
        self.remove_driver()
        shutil.rmtree(self.folder / "cards", ignore_errors=True)
