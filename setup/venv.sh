#!/bin/sh
# Makes the virtual environment with the pinned packages. Usage: venv.sh FOLDER
set -eu
folder=$1

newest() {
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "Tidegate needs Python 3.11 or later and none was found; install one, or name it: make PYTHON=/path/to/python3" >&2
    exit 1
}

python=$(newest)
if [ ! -x "$folder/bin/python" ]; then
    if ! "$python" -m venv "$folder"; then
        rm -rf "$folder"
        echo "$python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "Installing the pinned packages into $folder (once)"
if ! "$folder/bin/pip" install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[dev]'; then
    echo "The packages could not be installed; is the package registry reachable?" >&2
    exit 1
fi
