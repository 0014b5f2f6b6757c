"""What of ours is on a host, for taking it away again: the script that asks, its answer (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runner.host_facts import sections

REMAINS = r"""
cut=$1 key=$2 workspace=$3
say() { printf '\n%s %s\n' "$cut" "$1"; }
case $workspace in '~') workspace=$HOME ;; '~/'*) workspace=$HOME/${workspace#'~/'} ;; esac
ours=runner-$(id -u) state=$HOME/.local/state/runner
say runs; ls "$workspace/runs" 2>/dev/null
say made; cat "$state/made" 2>/dev/null
say others
for each in "$state/workers"/*; do
    case ${each##*/} in "$ours-$key" | "$ours-$key"[.-]* | '*') ;; *) echo "${each##*/}" ;; esac
done
for each in "$state/venvs"/* "$HOME/.local/share/runner/workspace"; do
    [ ! -e "$each" ] || echo "$each"
done
say elsewhere
docker ps -a --filter label=org.runner.worker --format '{{.Names}}' 2>/dev/null |
    while read -r each; do
        case $each in "$ours-$key" | "$ours-$key"-*) ;; *) echo "$each" ;; esac
    done
say end
"""
"""$1 a word that cuts the answer, $2 the workspace's key, $3 the workspace."""


@dataclass(frozen=True)
class Remains:
    """What a host has of this workspace and of others."""

    runs: tuple[str, ...] = ()
    """Names in the workspace's runs/."""
    made: tuple[str, ...] = ()
    """Lines of `made` (host_scripts.py)."""
    others: tuple[str, ...] = ()
    """What else of this account uses the folders that all share."""
    others_here: bool = False
    """Whether workers of other workspaces or accounts use this Docker."""

    @property
    def is_last(self) -> bool:
        """Whether nothing else of this account needs leases, keys and bases."""
        return not self.others


def parse_remains(text: str, cut: str, uid: int) -> Remains:
    """The script's answer. Raises ValueError when it did not run to its end."""
    found = sections(text, cut)
    if "end" not in found:
        raise ValueError("the host's answer breaks off")
    elsewhere = _lines(found, "elsewhere")
    of_account = tuple(name for name in elsewhere if name.startswith(f"runner-{uid}-"))
    return Remains(
        runs=tuple(
            name
            for name in _lines(found, "runs")
            if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name)
        ),
        made=tuple(_lines(found, "made")),
        others=(*_lines(found, "others"), *of_account),
        others_here=bool(elsewhere),
    )


def _lines(found: Mapping[str, str], name: str) -> list[str]:
    return [line for line in found.get(name, "").splitlines() if line]
