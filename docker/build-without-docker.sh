#!/usr/bin/env bash
# Builds an image where there is no Docker engine: with buildah, in a chroot, as root.
#
#     docker/build-without-docker.sh cpu|cuda|retriever [option of `buildah bud` …]
#
# What is true of one machine alone (pip's configuration, a folder of wheels, certificates) comes as options:
#     --volume /etc/pip.conf:/etc/pip.conf:ro --volume /etc/ssl/certs:/etc/ssl/certs:ro
#
# BASE_IMAGE      what to build on; without it a base is made of Debian's packages, once (SUITE, MIRROR)
# STORAGE_DRIVER  buildah's; vfs, the default here, works everywhere and copies whole layers
#
# To run it:
#     container=$(buildah from --pull-never maxsim-serve:cpu)
#     buildah run --isolation chroot --network host --user maxsim "$container" -- maxsim serve
set -euo pipefail

target=${1:?cpu, cuda or retriever}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}
suite=${SUITE:-bookworm}

make_base() { # of Debian's packages, under the name $1
  local directory container
  directory=$(mktemp -d)
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$directory" ${MIRROR:+"$MIRROR"}
  rm -rf "$directory"/var/cache/apt/archives/*.deb "$directory"/var/lib/apt/lists/*
  container=$(buildah from scratch)
  buildah copy --quiet "$container" "$directory" /
  buildah commit --rm "$container" "$1"
  rm -rf "$directory"
}

base=${BASE_IMAGE:-localhost/debian-python:$suite}
if [[ -z ${BASE_IMAGE:-} ]] && ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  make_base "$base"
fi

case $target in
  cpu | cuda) options=(--file "$root/Dockerfile" --target "$target" --tag "maxsim-serve:$target") ;;
  retriever) options=(--file "$root/docker/retriever/Dockerfile" --tag maxsim-retriever) ;;
  *) echo "$target: cpu, cuda or retriever" >&2 && exit 2 ;;
esac
# --format docker keeps the health check, which OCI's format has no place for.
exec buildah bud --isolation chroot --network host --format docker --pull-never \
  --build-arg "BASE_IMAGE=$base" "${options[@]}" "$@" "$root"
