"""The script that asks a host everything at once (pure).

It is `host_facts.SCRIPT` with more before and behind it, for any POSIX sh and any set of tools.
What can hang has a limit of its own; quick and harmless things come first, so that an answer which
breaks off all the same is worth having.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner import host_facts, venv_facts
from runner.model import Host, ImagePin
from runner.placement import worker_key

LIMIT_S = 5
"""How long one tool may take there."""
_BEFORE = r"""
cut=$1 runtime=$2 wanted=$3
shift 3
say() { printf '\n%s %s\n' "$cut" "$1"; }
limited=
if timeout -k 1 9 true 2>/dev/null; then limited='timeout -k 1 LIMIT'
elif timeout 9 true 2>/dev/null; then limited='timeout LIMIT'; fi
say clock; date +%s.%N; date '+%z %Z'
say modes
for each in "$HOME" "$HOME/.ssh" "$HOME/.ssh/authorized_keys"; do
    stat -L -c '%a %u' "$each" 2>/dev/null || echo -
done
say limits; cat /proc/self/limits 2>/dev/null
say memory; head -n 5 /proc/meminfo 2>/dev/null
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
say shm; df -Pk /dev/shm 2>/dev/null | tail -n 1
say names; name=$(uname -n); printf '%s\n' "$name"
if command -v getent >/dev/null 2>&1; then
    for each in "$name" localhost; do
        $limited getent hosts "$each" >/dev/null 2>&1; echo "$?"
    done
fi
say shell; printf '%s\n' "$SHELL"
noise() { SHLVL=0 $limited "$@" </dev/null 2>&1 | head -c 400 | head -n 3; }
if [ -n "$SSH_CONNECTION" ] && [ -x "$SHELL" ]; then
    say noise; began=$(noise "$SHELL" -c :); printf '%s\n' "$began"
    plain=-f files=
    case ${SHELL##*/} in
        bash) plain=--norc files=".bash_aliases .bashrc /etc/bash.bashrc" ;;
        zsh) files=".zshenv /etc/zsh/zshenv" ;;
        tcsh|csh) files=".tcshrc .cshrc" ;;
        fish) plain=--no-config files=".config/fish/config.fish" ;;
    esac
    for file in $files; do
        case $file in /*) path=$file ;; *) path=$HOME/$file ;; esac
        [ -n "$began" ] && [ -r "$path" ] || continue
        said=$(noise "$SHELL" $plain -c 'source "'"$path"'"')
        [ -z "$said" ] || { say prints; printf '%s\n' "$file"; break; }
    done
fi
skip_nvidia=
if command -v nvidia-smi >/dev/null 2>&1; then
    listed=$($limited nvidia-smi -L 2>&1)
    case $? in 124|137|143) skip_nvidia=yes; say nvidia-hangs ;; esac
    say nvidia-list; printf '%s\n' "$listed" | head -c 8000
fi
"""
_AFTER = r"""
say folders
[ -w "${there:-/}" ] && echo yes || echo no
[ ! -d "$state/leases" ] || { [ -w "$state/leases" ] && echo yes || echo no; }
say mounts; head -c 60000 /proc/mounts 2>/dev/null
root=
if command -v docker >/dev/null 2>&1 && [ "$status" = 0 ]; then
    root=$($limited docker info --format '{{.DockerRootDir}}' 2>/dev/null)
fi
space() {
    say "$1"
    $limited df -Pk "$2" 2>/dev/null | tail -n 1; $limited df -Pi "$2" 2>/dev/null | tail -n 1
}
space "disk workspace" "${there:-/}"
[ -z "$root" ] || space "disk docker" "$root"
if [ -z "$skip_nvidia" ] && command -v nvidia-smi >/dev/null 2>&1; then
    form=--format=csv,noheader,nounits
    say gpu-modes
    $limited nvidia-smi --query-gpu=index,persistence_mode,mig.mode.current,memory.used $form
    say gpu-health; errors=ecc.errors.uncorrected.volatile.total
    rows=retired_pages.pending,remapped_rows.pending,remapped_rows.failure
    hot=clocks_throttle_reasons.hw_thermal_slowdown
    $limited nvidia-smi --query-gpu=index,$errors,$rows,$hot $form
    say gpu-apps
    apps=$($limited nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name $form)
    printf '%s\n' "$apps" | head -n 64
    say gpu-users
    for each in $(printf '%s\n' "$apps" | head -n 64 | cut -d, -f2); do
        case $each in *[!0-9]*) ;; *) ps -o pid=,user= -p "$each" 2>/dev/null ;; esac
    done
fi
say toolkit; command -v nvidia-container-runtime-hook
if [ "$runtime" = venv ]; then
    say made; [ -e "$state/workers/venv-$key/worker.json" ] && echo yes
    say boot
    command -v crontab >/dev/null 2>&1 && echo crontab
    $limited crontab -l 2>/dev/null | grep -q "# runner venv-$key" && echo cron-line
    $limited loginctl show-user "$(id -un)" -p Linger 2>/dev/null
    cat /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf 2>/dev/null |
        grep -i '^ *KillUserProcesses *='
fi
if [ "$runtime" = local ]; then
    say made; [ -d "$workspace/.runner/bundles" ] && echo yes
fi
if [ "$runtime" = venv ]; then
PYTHONS
fi
say done
"""
_PYTHONS = venv_facts.SCRIPT.partition(host_facts.SCRIPT)[2]
"""What `provision` asks of Pythons, behind what it asks of any machine; it may take the longest,
hence is the last."""
SCRIPT = (
    _BEFORE.replace("LIMIT", str(LIMIT_S)) + host_facts.SCRIPT + _AFTER.replace("PYTHONS", _PYTHONS)
)


def argv(host: Host, pin: ImagePin, cut: str, *, workspace: str, images: str) -> Sequence[str]:
    """The command that asks; its answer is cut in sections by `cut`."""
    key = worker_key(host)
    own = [cut, host.runtime, host.python or ""]
    words = [*own, cut, key, pin.name, workspace, pin.base, images, *host.data.values()]
    return ["sh", "-c", SCRIPT, "runner", *words]
