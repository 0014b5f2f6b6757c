"""NVIDIA's driver against the image, and the cards against what torch was compiled for (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, ok
from runner.host_facts import Card
from runner.worker_plan import card_fits, driver_suffices

_MISMATCH = "driver/library version mismatch"
_NO_DRIVER = "couldn't communicate with the nvidia driver"


def wanted_cards(seen: Seen) -> list[Card]:
    """The cards that the host file lets runs have."""
    facts = seen.facts
    if facts is None or seen.host.gpus == "none":
        return []
    if isinstance(seen.host.gpus, tuple):
        return [card for card in facts.cards if card.index in seen.host.gpus]
    return list(facts.cards)


def judge(seen: Seen) -> Iterator[Check]:
    """The driver works, is new enough for the image, and its cards can run it."""
    facts = seen.facts
    if facts is None or seen.host.gpus == "none":
        return
    if "nvidia-hangs" in seen.parts or seen.stopped_in in ("nvidia-list", "nvidia", "nvidia-old"):
        yield fault(
            "nvidia-smi", "driver", "nvidia-smi does not answer within 5 s; a card or the driver"
            " hangs",
            "see what the kernel says of it (Xid), then restart the machine:",
            "  sudo dmesg | grep -i -e xid -e nvrm | tail",
        )  # fmt: skip
        return
    if facts.has_nvidia_smi and facts.nvidia_error:
        yield _broken(seen, facts.nvidia_error)
        return
    cards = wanted_cards(seen)
    if not cards or seen.host.runtime == "local":
        if cards:
            yield ok("driver", "driver", f"driver {facts.driver}")
        return
    pin = seen.pin
    if not driver_suffices(facts.driver, pin):
        yield fault(
            "driver", "driver",
            f"{facts.driver}; image {pin.name} needs {pin.driver_min} or newer",
            *_other_pin(seen, cards, "its keeper can install a newer one"),
        )  # fmt: skip
    else:
        yield ok("driver", "driver", f"driver {facts.driver}")
    unfit = [card for card in cards if not card_fits(card, pin)]
    if unfit:
        card = unfit[0]
        major, minor = card.capability or (0, 0)
        which = ", ".join(str(each.index) for each in unfit)
        yield fault(
            "capability", "driver",
            f"image {pin.name} has no code for GPU {which} ({card.name}, capability"
            f" {major}.{minor}; it has {', '.join(pin.capabilities)})",
            *_other_pin(seen, cards, _unfit_way(seen, cards)),
        )  # fmt: skip
    elif any(card.capability for card in cards):
        yield ok("capability", "driver", "compute capability")


def _unfit_way(seen: Seen, cards: list[Card]) -> str:
    fitting = [str(card.index) for card in cards if card_fits(card, seen.pin)]
    if fitting:
        return f"leave it out in its host file:  gpus = [{', '.join(fitting)}]"
    return (
        "Blackwell (10.x, 12.x) needs torch 2.7 or newer; images.toml beside hosts/ may add a pin"
    )


def _other_pin(seen: Seen, cards: list[Card], otherwise: str) -> tuple[str, ...]:
    """The pin to use instead, the newest torch first, where one fits driver and cards."""
    facts = seen.facts
    assert facts is not None
    fitting = [
        pin
        for pin in seen.pins.values()
        if pin.name != seen.pin.name
        and pin.cuda[:1].isdigit()
        and driver_suffices(facts.driver, pin)
        and all(card_fits(card, pin) for card in cards)
    ]
    if not fitting:
        return (otherwise,)
    best = max(fitting, key=lambda pin: [int(n) for n in pin.torch.split(".") if n.isdigit()])
    return (
        f"use CUDA {best.cuda}:",
        f"  runner provision host={seen.host.name} image={best.name}",
    )


def _broken(seen: Seen, said: str) -> Check:
    line = said.splitlines()[0][:160]
    if _MISMATCH in said.lower():
        return fault(
            "nvidia-smi", "driver",
            "the driver was upgraded, and the old one is still loaded (driver/library version"
            " mismatch)",
            "restart the machine; provisioning again does not help",
        )  # fmt: skip
    if _NO_DRIVER in said.lower():
        return fault(
            "nvidia-smi", "driver", "nvidia-smi is there, and no driver is loaded",
            f"{seen.there}:", "  sudo modprobe nvidia",
            "if that fails, install the driver anew (after a new kernel it must be), or restart;",
            'to use its CPUs alone:  gpus = "none" in its host file',
        )  # fmt: skip
    return fault(
        "nvidia-smi", "driver", f"nvidia-smi fails: {line}",
        "see what the kernel says of it, then restart the machine:",
        "  sudo dmesg | grep -i -e xid -e nvrm | tail",
    )  # fmt: skip
