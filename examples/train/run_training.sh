#!/bin/bash
# Trains with a config: bash run_training.sh [CONFIG.yaml] [KEY=VALUE...]. The config is the argument, otherwise config.yaml of the
# current folder, otherwise parakeet.yaml beside this script. The command is OCTAVO if that is set, that of this checkout, or that of the PATH.
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
case ${1:-} in
  *.yaml | *.yml | *.py)
    config=$1
    shift
    if [ ! -f "$config" ]; then
      echo "run_training.sh: $config: there is no such config" >&2
      exit 2
    fi
    ;;
  *)
    config=./config.yaml
    [ -f "$config" ] || config=$here/parakeet.yaml
    if [ ! -f "$config" ]; then
      echo "run_training.sh: found neither ./config.yaml nor $config; give the path of a config as the first argument" >&2
      exit 2
    fi
    ;;
esac
octavo=${OCTAVO:-$here/../../build/bin/octavo}
if [ -z "${OCTAVO:-}" ] && [ ! -x "$octavo" ]; then
  octavo=$(command -v octavo) || {
    echo "run_training.sh: the command octavo was not found: run make in the checkout, put it onto the PATH, or set OCTAVO to its path" >&2
    exit 127
  }
fi
echo "run_training.sh: training with $config" >&2
exec "$octavo" train --config "$config" "$@"
