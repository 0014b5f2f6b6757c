"""The folders of the host that its file names in [data], as jobs find them in $RUNNER_DATA.

In a container they are mounted below /data; elsewhere each attempt has a folder of links to them.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

MOUNTED = "/data"


def provide(runtime: str, data: Any, folder: str) -> str:
    """The folder to tell the job; "" where the host gives none.

    data: {name: path as seen from here}. folder: the attempt's own. Raises OSError.
    """
    if not isinstance(data, dict) or not data:
        return ""
    if runtime == "docker":
        return MOUNTED
    links = os.path.join(folder, "data")
    os.makedirs(links, exist_ok=True)
    for name, path in data.items():
        link = os.path.join(links, os.path.basename(str(name)))
        if not os.path.lexists(link):
            os.symlink(str(path), link)
    return links


def missing(data: Any) -> Optional[str]:
    """Which of the folders is not there, in words; None when all are."""
    found: Dict[str, Any] = data if isinstance(data, dict) else {}
    for name, path in sorted(found.items()):
        if not os.path.isdir(str(path)):
            return "data: %s is %s, which is no folder on this host" % (name, path)
    return None
