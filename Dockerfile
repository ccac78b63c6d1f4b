# syntax=docker/dockerfile:1
#
# Two images from one file:
#   docker build --target cpu  -t maxsim-serve:cpu  .
#   docker build --target cuda -t maxsim-serve:cuda .
#
# The package is installed as a wheel into its own environment; the source tree is not in the image.
# PIP_EXTRA_INDEX_URL points pip at PyTorch's CPU wheels for a small `cpu` image; without it PyPI's
# default build is taken, which runs on the CPU as well and is larger.

ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS wheel
# For the compiled CPU kernel, look-up and writer; without a compiler the wheel has those in Python alone.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY service service
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim AS runtime
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin maxsim \
 && mkdir /data && chown maxsim /data \
 && python -m venv /opt/maxsim
ENV PATH=/opt/maxsim/bin:$PATH \
    PYTHONUNBUFFERED=1 \
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
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint /etc/maxsim/constraints.txt "$(ls /wheels/*.whl)[${EXTRAS}]" && rm -r /wheels
USER maxsim

FROM runtime AS cuda
ARG EXTRAS=encode,cuda
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint /etc/maxsim/constraints.txt "$(ls /wheels/*.whl)[${EXTRAS}]" && rm -r /wheels
USER maxsim
