# The worker's image, built on the host from a stream (runner/content.py makes the context).
# No "# syntax=" line: it would make BuildKit fetch a frontend image.
ARG BASE_IMAGE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
FROM ${BASE_IMAGE}
USER root

# Only what the base lacks is fetched, so a prepared base builds without a network; where there is
# none and something is missing, it fails within a minute or two.
RUN set -eu; \
    if ! command -v tini > /dev/null; then \
        apt-get -o Acquire::Retries=2 -o Acquire::http::Timeout=20 update; \
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends tini; \
        rm -rf /var/lib/apt/lists/*; \
    fi

# The base's torch is a constraint: no dependency may replace it.
RUN set -eu; \
    mkdir -p /opt/runner; \
    python3 -c "import torch; print('torch==' + torch.__version__)" > /opt/runner/constraints.txt; \
    missing=$(python3 -c "from importlib.util import find_spec; print(*(n for n in ('gymnasium', 'numpy', 'supervisor', 'tensorboard') if find_spec(n) is None))"); \
    command -v py-spy > /dev/null || missing="$missing py-spy"; \
    if [ -n "$missing" ]; then \
        PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --timeout 20 --retries 2 \
            --disable-pip-version-check -c /opt/runner/constraints.txt $missing; \
    fi

COPY entrypoint /usr/local/bin/runner-entrypoint
COPY worker /opt/runner/worker
# The root file system is read-only later, so nothing could be compiled then.
RUN python3 -m compileall -q /opt/runner/worker

# The last, small layers are the only ones that depend on the host's account.
ARG RUNNER_UID=1000
ARG RUNNER_GID=1000
RUN set -eu; \
    [ "$RUNNER_UID" -ge 1 ] || { echo "the worker's user cannot be root" >&2; exit 1; }; \
    old=$(getent passwd "$RUNNER_UID" | cut -d: -f1); \
    if [ -n "$old" ]; then sed -i "/^$old:/d" /etc/passwd /etc/shadow; fi; \
    getent group "$RUNNER_GID" > /dev/null || echo "runner:x:$RUNNER_GID:" >> /etc/group; \
    echo "runner:x:$RUNNER_UID:$RUNNER_GID::/home/runner:/bin/bash" >> /etc/passwd; \
    mkdir -p /home/runner /workspace /leases /etc/runner/worker; \
    chown "$RUNNER_UID:$RUNNER_GID" /home/runner /workspace /leases

ARG RUNNER_INPUTS=""
LABEL org.runner.inputs=${RUNNER_INPUTS}
USER ${RUNNER_UID}:${RUNNER_GID}
WORKDIR /workspace
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "/usr/local/bin/runner-entrypoint"]
