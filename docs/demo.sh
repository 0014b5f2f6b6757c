#!/bin/sh
# What `make demo` runs: the main job on this machine, as a newcomer would type it.
# Every line that is run is shown. Results lie in results/.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export PATH

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }

say 'runner submit job=dqn seed=1   # queued on this machine'
run=$(runner submit job=dqn seed=1)
echo "$run"

say "runner tail $run   # live; Ctrl-C would leave it running"
runner tail "$run" --from 0

say "runner status $run"
runner status "$run"

say "runner pull $run   # checkpoints and logs, verified"
runner pull "$run"

say "runner plot $run"
runner plot "$run"

say "runner plot $run --out results/demo.png"
runner plot "$run" --out results/demo.png

say "python agents/dqn.py evaluate=results/$run/checkpoints episodes=100 seed=1000"
python agents/dqn.py evaluate="results/$run/checkpoints" episodes=100 seed=1000
