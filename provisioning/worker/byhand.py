"""An image that somebody runs without a client: no dispatcher, services that start at once.

RUNNER_SERVICES=jupyter,sshd    what is to run
RUNNER_LISTEN=0.0.0.0           the address they listen on; 127.0.0.1 unless told, and always for
                                TensorBoard, which has no lock of its own
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, Optional

SERVICES = ("sshd", "jupyter", "tensorboard")
PORTS = {"jupyter": 8888, "tensorboard": 6006, "sshd": 2222}


def is_so(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Whether that is the case here; a client names its worker's record."""
    given = os.environ if environ is None else environ
    return "RUNNER_SERVICES" in given and "RUNNER_WORKER_CONFIG" not in given


def is_container(environ: Optional[Mapping[str, str]] = None) -> bool:
    """Whether this is a worker's container, made by a client or run by hand."""
    given = os.environ if environ is None else environ
    return "RUNNER_WORKER_CONFIG" in given or is_so(given)


def wanted(environ: Mapping[str, str]) -> List[str]:
    """The names in RUNNER_SERVICES, whatever they are."""
    return [name for name in environ.get("RUNNER_SERVICES", "").replace(",", " ").split() if name]


def unknown(environ: Mapping[str, str]) -> List[str]:
    """Those of them that are no service."""
    return [name for name in wanted(environ) if name not in SERVICES]


def autostart(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables by which supervisord.conf knows what to start at once."""
    by_hand = is_so(environ)
    told = {name: by_hand and name in wanted(environ) for name in SERVICES}
    told["dispatcher"] = not by_hand
    return {"RUNNER_AUTOSTART_" + name: str(value).lower() for name, value in told.items()}


def listen_address(environ: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """Where services listen in an image run by hand; None: on sockets, as always else."""
    given = os.environ if environ is None else environ
    return (given.get("RUNNER_LISTEN") or "127.0.0.1") if is_so(given) else None
