"""GPU memory of one process: what it holds, when it nears the card's limit, when to give back."""

from __future__ import annotations

from typing import NamedTuple

import torch

NEAR_LIMIT = 0.9  # share of the card's memory in use, ours and others', from which a word is due
GIVE_BACK_BYTES = 256 << 20  # below this, giving the cache back costs more than it brings


class Use(NamedTuple):
    """Bytes on one card. allocated ≤ reserved: tensors, and all that torch's allocator holds."""

    index: int
    allocated: int
    reserved: int
    peak: int
    """The most that tensors ever held since the start."""
    free: int
    """What nobody holds, of this or of another process."""
    total: int

    def tags(self) -> dict[str, float]:
        """As TensorBoard tags."""
        found = {"allocated": self.allocated, "reserved": self.reserved, "peak": self.peak}
        return {f"gpu{self.index}/{name}_bytes": float(value) for name, value in found.items()}


def read(device: torch.device) -> Use | None:
    """What this process holds on its card; None on a CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return Use(
        index=torch.cuda.current_device() if device.index is None else device.index,
        allocated=torch.cuda.memory_allocated(device),
        reserved=torch.cuda.memory_reserved(device),
        peak=torch.cuda.max_memory_allocated(device),
        free=free,
        total=total,
    )


def warning(use: Use) -> str | None:
    """One line when the card is nearly full, with who holds how much; None while it is not."""
    held = use.total - use.free
    if held < NEAR_LIMIT * use.total:
        return None
    others = max(0, held - use.reserved)
    text = f"GPU {use.index} is nearly full: {_gib(held)} of {_gib(use.total)} GiB"
    text += f"; {_gib(use.allocated)} by tensors (at most {_gib(use.peak)})"
    text += f", {_gib(use.reserved - use.allocated)} kept for later ones"
    return text + (f", {_gib(others)} by others or the driver" if others >= 1 << 20 else "")


def is_worth_giving_back(use: Use) -> bool:
    """Whether the allocator keeps so much unused that others, or larger tensors, may need it."""
    unused = use.reserved - use.allocated
    return unused >= GIVE_BACK_BYTES and unused > use.allocated / 2


def give_back(device: torch.device) -> bool:
    """Empty the allocator's cache where that helps, as after an evaluation; whether it did."""
    use = read(device)
    if use is None or not is_worth_giving_back(use):
        return False
    torch.cuda.empty_cache()
    return True


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"
