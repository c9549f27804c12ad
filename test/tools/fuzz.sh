#!/usr/bin/env bash
# Builds the fuzz of pyfabric for speed and runs it: test/tools/fuzz.sh PROVIDER OPERATIONS SEED [options]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
folder=$PWD/build/fuzz
mkdir -p build
export PATH=$PWD/.venv/bin:$PATH
{ cmake -G Ninja -S . -B "$folder" -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" &&
  cmake --build "$folder" --target pyfabric_fuzz; } > "$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
fabric=$("$python" -c 'import pyfabric; print(pyfabric.LIBRARY.path.parent)')
LD_LIBRARY_PATH=$fabric exec "$folder/test/pyfabric/native/pyfabric_fuzz" "$@"
