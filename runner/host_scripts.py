"""Shell scripts that the runner gives a host's `sh` to make and to take away a worker (pure).

What was made is noted in `~/.local/state/runner/made` before it is made, a line each, so that
`down --purge` takes away just that, whatever was cut:

    folder PATH       a folder that was not there
    mode MODE PATH    a folder that was there and had this mode
    base NAME         a base image that was not there
    image INPUTS      an image of ours, by its label
"""

from __future__ import annotations

TAKEN = 17
"""Status of FOLDERS when this generation is somebody else's."""

_NOTES = """
set -eu
umask 077
state=$HOME/.local/state/runner
new=
nl='
'
note() {
    grep -qxF -e "$1" "$state/made" 2>/dev/null || printf '%s\\n' "$1" >> "$state/made"
}
make() {
    [ ! -d "$1" ] || return 0
    case $1 in /*/*) make "${1%/*}" ;; esac
    if [ -d "$state" ]; then note "folder $1"; else new="$new$1$nl"; fi
    mkdir "$1" 2>/dev/null || [ -d "$1" ]
}
own() {
    mode=$(stat -c %a "$1")
    [ "$mode" = 700 ] || {
        grep -qxF -e "folder $1" "$state/made" 2>/dev/null || note "mode $mode $1"
        chmod 0700 "$1"
    }
    [ -z "$owner" ] || chown "$owner" "$1"
}
make "$state"
IFS=$nl
for each in $new; do note "folder $each"; done
new=
unset IFS
"""
NOTE = _NOTES + 'for line; do note "$line"; done\n'
"""$@: lines to note."""
UNNOTE = """
made=$HOME/.local/state/runner/made
grep -vxF -e "$1" "$made" > "$made.new"
mv "$made.new" "$made"
"""
"""$1 a line that is not true after all."""
FOLDERS = (
    _NOTES
    + f"""
workspace=$1 name=$2 owner=$3
for folder in "$workspace" "$state/leases" "$state/keys"; do
    make "$folder"
    own "$folder"
done
[ -e "$state/keys/authorized_keys" ] || : > "$state/keys/authorized_keys"
make "$state/workers"
mkdir "$state/workers/$name" 2>/dev/null || exit {TAKEN}
cat > "$state/workers/$name/worker.json"
[ -z "$owner" ] || chown -R "$owner" "$state/workers/$name" "$state/keys"
"""
)
"""Workspace, leases, keys and the worker's own folder, whose name nobody else may have taken.

$1 workspace, $2 NAME.GENERATION, $3 UID:GID or nothing; worker.json comes on stdin.
"""
ASIDE = """
id=$1 name=$2
docker update --restart=no "$id" >/dev/null && docker rename "$id" "$name"
"""
"""$1 the id of a container, $2 its name from now on: it does not come back once it has ended."""
BACK = 'docker rename "$1" "$2" && docker update --restart=always "$1" >/dev/null'
"""Undoes ASIDE."""
REMOVE = """
status=0 limit=$1
shift
for id; do
    docker stop --time "$limit" "$id" >/dev/null 2>&1
    said=$(docker rm -f -v "$id" 2>&1) && continue
    docker container inspect "$id" >/dev/null 2>&1 || continue
    echo "$said" >&2; status=1
done
exit $status
"""
"""$1 how long each may take to end, then ids of containers that are to be gone; one that is gone
already is no failure.
"""
TIDY = """
state=$HOME/.local/state/runner
for folder; do rm -rf "$state/workers/$folder"; done
"""
"""$@: folders in workers/."""
FORGET = """
state=$HOME/.local/state/runner kept=$1 worker=$2
shift 2
for name; do
    for folder in "$state/workers/$name" "$state/workers/$name".*; do rm -rf "$folder"; done
done
if [ -n "$worker" ]; then
    mkdir -p "$state/workers/$kept"
    printf '{"worker": "%s"}' "$worker" > "$state/workers/$kept/worker.json"
fi
rmdir "$state/workers" 2>/dev/null
:
"""
"""$1 a name, $2 the workspace's worker id that is kept under it or nothing, then names of
containers whose folders in workers/ go.
"""
PURGE_IMAGES = """
prune=$1
shift
for inputs; do
    docker image ls -a --no-trunc --filter "label=org.runner.inputs=$inputs" \\
        --format '{{.Repository}} {{.Tag}} {{.ID}}' |
    while read -r name tag id; do
        case $name in
            runner-worker) docker image rm "$name:$tag" ;;
            '<none>') docker image rm "$id" ;;
        esac
    done
done >/dev/null 2>&1
[ "$prune" = no ] || docker image prune -f --filter label=org.runner.part >/dev/null 2>&1
:
"""
"""$1 `no` where builds of others must not be touched, then inputs of images that are to go. One
that a container or another image needs stays.
"""
PURGE_BASES = 'for base; do docker image rm "$base" >/dev/null 2>&1; done; :'
"""$@: base images that were not there before."""
PURGE_WORKSPACE = """
state=$HOME/.local/state/runner workspace=$1
if grep -qxF -e "folder $workspace" "$state/made" 2>/dev/null; then
    chmod -R u+rwX "$workspace" 2>/dev/null
    rm -rf "$workspace"
    grep -vxF -e "folder $workspace" "$state/made" > "$state/made.new"
    mv "$state/made.new" "$state/made"
else
    for name in code checkpoints logs runs .home .runner; do
        [ -e "$workspace/$name" ] || [ -h "$workspace/$name" ] || continue
        [ -h "$workspace/$name" ] || chmod -R u+rwX "$workspace/$name" 2>/dev/null
        rm -rf "$workspace/$name" || exit 1
    done
fi
[ ! -e "$workspace/runs" ]
"""
"""$1 the workspace: all of it where we made it, else what is ours in it."""
PURGE_STATE = """
state=$HOME/.local/state/runner
lines=
while IFS= read -r line; do lines="$line
$lines"; done < "$state/made" 2>/dev/null
rm -rf "$state"
printf '%s' "$lines" | while IFS= read -r line; do
    case $line in
        'folder '*) rmdir "${line#folder }" 2>/dev/null ;;
        'mode '*)
            rest=${line#mode }
            [ ! -d "${rest#* }" ] || chmod "${rest%% *}" "${rest#* }" ;;
    esac
done
[ ! -e "$state" ]
"""
"""The shared folders, and whatever else was made: only with the account's last worker."""
