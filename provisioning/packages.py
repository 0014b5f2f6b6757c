"""What the image's own Python has of a list, for the Dockerfile; run by that Python, by its path.

    packages.py frozen NAME…    lines NAME==VERSION of those that are there: pip's constraints
    packages.py missing FILE    lines of a requirements file that nothing there meets yet

A package that the base has in another version is left as the base's maker chose it.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?")


def find_version(name: str) -> str | None:
    """The version of a distribution that is there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_met(line: str) -> bool:
    """Whether a requirement's distribution is there, with what its extras ask for."""
    match = _LINE.match(line)
    if match is None:
        return False
    name, extras = match["name"], match["extras"] or ""
    if find_version(name) is None:
        return False
    wanted = {extra.strip() for extra in extras.split(",")} - {""}
    asked = [rule for rule in metadata.requires(name) or () if _extra_of(rule) in wanted]
    return all(is_met(rule) for rule in asked)


def _extra_of(rule: str) -> str | None:
    match = re.search(r"""\bextra\s*==\s*['"]([^'"]+)['"]""", rule)
    return match[1] if match else None


def main(argv: list[str]) -> int:
    command, words = argv[0], argv[1:]
    if command == "frozen":
        found = {name: find_version(name) for name in words}
        print("\n".join(f"{name}=={version}" for name, version in found.items() if version))
        return 0
    with open(words[0], encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    print("\n".join(line for line in lines if line and not is_met(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
