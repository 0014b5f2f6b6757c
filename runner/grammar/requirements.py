"""What `[setup] requirements` may hold: packages by name, and nothing that steers pip (pure).

    "wandb", "gymnasium[box2d]>=1.0,<2", "tyro==0.9.2 --hash=sha256:…",
    "minigrid @ https://host/minigrid.whl", "x @ git+https://host/x@tag", 'y; os_name == "posix"'

Options of pip (indices, other files, editable installs) are refused: what a package comes from is
set on the host, by pip's own settings or variables. So is a password in an address, which would
stand in every record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = r"(?:\s*\[\s*(?:" + _NAME + r"(?:\s*,\s*" + _NAME + r")*)?\s*\])?"
_RULE = r"(?:===|~=|==|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_RULES = r"(?:\s*\(?\s*" + _RULE + r"(?:\s*,\s*" + _RULE + r")*\s*,?\s*\)?)?"
_MARKER = r"(?:\s*;\s*(?P<marker>[A-Za-z0-9_.'\"<>=!~()+*, \-]+))?"
_HASHES = r"(?:\s+--hash=(?:sha256|sha384|sha512):[0-9a-fA-F]{64,128})*"
_BY_NAME = re.compile(_NAME + _EXTRAS + _RULES + _MARKER + _HASHES + r"\s*")
_BY_ADDRESS = re.compile(
    _NAME + _EXTRAS + r"\s*@\s*(?P<url>\S+)(?:\s+;\s*(?P<marker>[^#]+?))?" + _HASHES + r"\s*"
)
_SCHEMES = re.compile(r"(?:https?|git\+https?|git\+ssh)://(?P<rest>\S+)")
_SIDE = re.compile(
    r"""\s*(?:'[^']*'|"[^"]*"|(?:python_version|python_full_version|os_name|sys_platform"""
    r"|platform_(?:release|system|version|machine|python_implementation)"
    r"|implementation_(?:name|version)|extra"
    # as these were called before
    r"|os\.name|sys\.platform|platform\.(?:version|machine|python_implementation)"
    r"|python_implementation)\b)"
)
_BETWEEN = re.compile(r"\s*(?:===|~=|==|!=|<=|>=|<|>|in\b|not\s+in\b)")
LONGEST = 500
MOST = 200


def problem_of(requirement: str) -> str | None:
    """What is wrong with a requirement, to go behind `is '…'; it `; None where nothing is."""
    text = requirement.strip()
    if not text or not text.isprintable() or len(text) > LONGEST:
        return "must be one package, as 'wandb' or 'gymnasium>=1.0'"
    if text.startswith("-"):
        return "is an option of pip; where packages come from is set on the host (PIP_INDEX_URL …)"
    match = _BY_NAME.fullmatch(text) or _BY_ADDRESS.fullmatch(text)
    if match is not None and match["marker"] is not None and not _is_marker(match["marker"]):
        return (
            "must be one package, and what stands behind ; a marker,"
            " as 'tomli; python_version < \"3.11\"'"
        )
    if match is not None and match.re is _BY_NAME:
        return None
    if match is None:
        return "must be one package, as 'wandb', 'gymnasium>=1.0' or 'name @ https://…'"
    address = _SCHEMES.fullmatch(match["url"])
    if address is None:
        return "has an address that is not https:// or git+https://"
    user = address["rest"].partition("/")[0].rpartition("@")[0]
    if ":" in user or (user and not match["url"].startswith("git+ssh")):
        return "has a name or password in its address, which would stand in every record"
    return None


def _is_marker(text: str) -> bool:
    """Whether pip can read a marker: comparisons, joined by `and` and `or`, and brackets."""
    rest, depth, wanted = text.strip(), 0, True
    while rest:
        if wanted and rest[0] == "(":
            depth, rest = depth + 1, rest[1:].lstrip()
            continue
        if wanted:
            end = 0
            for part in (_SIDE, _BETWEEN, _SIDE):
                found = part.match(rest, end)
                if found is None:
                    return False
                end = found.end()
        elif rest[0] == ")" and depth:
            depth, rest = depth - 1, rest[1:].lstrip()
            continue
        else:
            found = re.match(r"(?:and|or)\b", rest)
            if found is None:
                return False
            end = found.end()
        rest, wanted = rest[end:].lstrip(), not wanted
    return not wanted and depth == 0


def without_secrets(requirement: str) -> str:
    """The requirement as a message may show it."""
    return re.sub(r"://[^/\s]*@", "://…@", requirement)


def lines_of(text: str) -> list[tuple[int, str]]:
    """(line, requirement) of a requirements file: without comments, continued lines joined."""
    found: list[tuple[int, str]] = []
    pending, begun = "", 0
    # editors of Windows put a mark before the first
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        whole = re.sub(r"(^|\s)#.*", "", line).rstrip()
        begun = begun or number
        if whole.endswith("\\"):
            pending += whole[:-1] + " "
            continue
        joined = " ".join((pending + whole).split())
        if joined:
            found.append((begun, joined))
        pending, begun = "", 0
    if pending.strip():
        found.append((begun, " ".join(pending.split())))
    return found


def name_of(requirement: str) -> str:
    """The package's name, as indices spell it."""
    match = re.match(_NAME, requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def find_twice(requirements: Sequence[str]) -> str | None:
    """The name of a package that is there twice with nothing to tell which is meant."""
    seen: set[str] = set()
    for each in requirements:
        name = name_of(each)
        if ";" not in each and name in seen:
            return name
        seen.add(name)
    return None
