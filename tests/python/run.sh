#!/bin/bash
# Builds and installs the Python package in an environment of its own, as a user does, and runs its tests.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
env=$target/python-env
python3 -m venv "$env"
export CARGO_TARGET_DIR=$target/python
"$env/bin/pip" --disable-pip-version-check --quiet install --force-reinstall "$root/python"
exec "$env/bin/python" -m unittest discover --quiet --start-directory "$root/python/tests"
