# The worker's image, built on the host from a stream (runner/content.py makes the context), or by
# hand with `make image`. No "# syntax=" line: it would make BuildKit fetch a frontend image.
ARG BASE_IMAGE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
FROM ${BASE_IMAGE}
USER root
# So that what a broken build leaves behind can be told from other people's layers.
LABEL org.runner.part=image

# RUNNER_COMPILER=1 adds what torch.compile needs (a runtime base has no C compiler).
ARG RUNNER_COMPILER=""
# Only what the base lacks is fetched, so a prepared base builds without a network; where there is
# none and something is missing, it fails within a minute or two. Host keys are a worker's own.
# loopback.so keeps mpirun off every interface but loopback; a compiler fetched for it goes again.
COPY worker/loopback.c /opt/runner/
RUN set -eu; \
    lacking=""; \
    need() { [ -n "$(command -v "$1")" ] || lacking="$lacking $2"; }; \
    PATH="$PATH:/usr/sbin"; \
    need mpirun openmpi-bin; \
    need ps procps; \
    need rsync rsync; \
    need sshd openssh-server; \
    need tini tini; \
    [ -z "$RUNNER_COMPILER" ] || need g++ g++; \
    if [ -n "$lacking" ]; then \
        apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
            -o APT::Update::Error-Mode=any update; \
        DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=2 -o Acquire::http::Timeout=20 \
            install -y --no-install-recommends $lacking; \
        if [ -z "$(command -v cc)" ]; then \
            installed() { dpkg-query -W -f '${binary:Package}\n' | sort; }; \
            installed > /tmp/before; \
            DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=2 \
                -o Acquire::http::Timeout=20 install -y --no-install-recommends gcc libc6-dev || :; \
            fetched=$(installed | comm -13 /tmp/before -); \
            rm /tmp/before; \
        fi; \
    fi; \
    if [ -n "$(command -v cc)" ]; then \
        cc -shared -fPIC -O1 /opt/runner/loopback.c -o /opt/runner/loopback.so -ldl; \
    fi; \
    [ -z "${fetched:-}" ] || DEBIAN_FRONTEND=noninteractive apt-get purge -y $fetched; \
    rm -rf /var/lib/apt/lists/*; \
    rm -f /etc/ssh/ssh_host_*

# What the base has of torch and numpy is a constraint: no dependency may replace it, and no
# requirement of a job either.
COPY packages.py requirements.txt /opt/runner/
RUN set -eu; \
    cd /opt/runner; \
    python3 packages.py frozen torch torchvision torchaudio numpy > constraints.txt; \
    grep -q '^torch==' constraints.txt || { echo "this base has no torch" >&2; exit 1; }; \
    python3 packages.py missing requirements.txt > missing.txt; \
    if grep -q . missing.txt; then \
        PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --no-cache-dir --timeout 20 --retries 2 \
            --disable-pip-version-check \
            -c constraints.txt -r missing.txt; \
        python3 packages.py frozen torch torchvision torchaudio numpy > constraints.txt; \
    fi; \
    rm missing.txt

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
    for name in $old runner; do sed -i "/^$name:/d" /etc/passwd /etc/shadow; done; \
    sed -i "/^runner:/d" /etc/group; \
    getent group "$RUNNER_GID" > /dev/null || echo "runner:x:$RUNNER_GID:" >> /etc/group; \
    echo "runner:x:$RUNNER_UID:$RUNNER_GID::/workspace/.home:/bin/bash" >> /etc/passwd; \
    mkdir -p /data /home/runner /leases /run/runner /workspace /etc/runner/keys /etc/runner/worker; \
    chown "$RUNNER_UID:$RUNNER_GID" /home/runner /leases /run/runner /workspace

ARG RUNNER_INPUTS=""
LABEL org.runner.inputs=${RUNNER_INPUTS}
USER ${RUNNER_UID}:${RUNNER_GID}
WORKDIR /workspace
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "/usr/local/bin/runner-entrypoint"]
