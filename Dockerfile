# syntax=docker/dockerfile:1
#
# Two images from one file:
#   docker build --target cpu  -t maxsim-serve:cpu  .
#   docker build --target cuda -t maxsim-serve:cuda .
#
# The package is installed as a wheel into its own environment; the source tree is not in the image.
# PIP_EXTRA_INDEX_URL points pip at PyTorch's CPU wheels for a small `cpu` image; without it PyPI's
# default build is taken, which runs on the CPU as well and is larger.
# BASE_IMAGE is any Debian with python3 (3.11 or newer) and its venv module.

ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS wheel
# For the compiled parts; without them the wheel does the same in Python, later. Python's own images bring its
# headers along, Debian has them in a package.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && header="$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
 && if [ ! -f "$header" ]; then apt-get install -y --no-install-recommends python3-dev; fi \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY service service
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python3 -m zipfile --list /wheels/*.whl > /wheels/contents \
 && for part in _avx2 _crew _order _fill _doorbell _lookup _rows; do grep -q "/$part\..*\.so" /wheels/contents || exit 1; done

FROM ${BASE_IMAGE} AS runtime
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin maxsim \
 && mkdir /data && chown maxsim /data \
 && python3 -m venv /opt/maxsim
# /data is the one place written to: the collections, compiled GPU kernels, models loaded by name.
ENV PATH=/opt/maxsim/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    TRITON_CACHE_DIR=/data/cache/triton \
    HF_HOME=/data/cache/huggingface \
    MAXSIM_CONFIG=/etc/maxsim/default.yaml \
    MAXSIM_HOST=0.0.0.0 \
    MAXSIM_DATA_DIR=/data
COPY constraints.txt /etc/maxsim/constraints.txt
COPY config/default.yaml /etc/maxsim/default.yaml
WORKDIR /data
VOLUME /data
EXPOSE 8080
# The interpreter is there; curl is not.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('MAXSIM_PORT', '8080')}/readyz\", timeout=2)"]
STOPSIGNAL SIGTERM
CMD ["maxsim", "serve"]

FROM runtime AS cpu
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=encode
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /etc/maxsim/constraints.txt "$(echo /wheels/*.whl)[${EXTRAS}]"
USER 10001

FROM runtime AS cuda
ARG EXTRAS=encode,cuda
# Triton compiles a small launcher in C for each kernel when it is first run, against Python's headers.
# python:*-slim has those; a Debian base has them in python3-dev.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && header="$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
 && if [ ! -f "$header" ]; then apt-get install -y --no-install-recommends python3-dev; fi \
 && test -f "$header" \
 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /etc/maxsim/constraints.txt "$(echo /wheels/*.whl)[${EXTRAS}]"
USER 10001
