#!/bin/bash
# Trains with a config: bash run_training.sh [CONFIG.yaml] [KEY=VALUE...]; without one, with parakeet.yaml of this folder.
# The command is OCTAVO if that is set, that of this checkout, or that of the PATH.
set -eu
here=$(cd -- "$(dirname -- "$0")" && pwd)
config=$here/parakeet.yaml
case ${1:-} in
  *.yaml | *.yml | *.py)
    config=$1
    shift
    ;;
esac
if [ ! -f "$config" ]; then
  echo "run_training.sh: $config: there is no such config; give its path as the first word" >&2
  exit 2
fi
octavo=${OCTAVO:-$here/../../build/bin/octavo}
if [ -z "${OCTAVO:-}" ] && [ ! -x "$octavo" ]; then
  octavo=$(command -v octavo) || {
    echo "run_training.sh: the command octavo was not found: run make in the checkout, put it onto the PATH, or set OCTAVO to its path" >&2
    exit 127
  }
fi
exec "$octavo" train --config "$config" "$@"
