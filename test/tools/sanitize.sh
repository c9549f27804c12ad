#!/usr/bin/env bash
# Builds pyfabric._core with a sanitizer beside the normal build and runs the tests of pyfabric against it.
#   test/tools/sanitize.sh address|thread [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
case ${1:-} in
  address) flags=address,undefined; libraries="libasan.so libubsan.so" ;;
  thread) flags=thread; libraries=libtsan.so ;;
  *) echo "usage: $0 address|thread [pytest arguments]" >&2; exit 2 ;;
esac
folder=$PWD/build/sanitize-$1
root=$folder/root
shift
PATH=$PWD/.venv/bin:$PATH cmake -G Ninja -S . -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$python" \
  -DPYFABRIC_SANITIZE=$flags > "$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
PATH=$PWD/.venv/bin:$PATH cmake --build "$folder" --target _core >> "$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }

# A package of the same Python files and the other module; the finder of the editable install would find the normal one.
mkdir -p "$root/pyfabric"
ln -sf "$PWD"/python/pyfabric/*.py "$folder"/_core*.so "$root/pyfabric/"
cat > "$root/sitecustomize.py" <<'P'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
P

preload=
for library in $libraries; do preload+=${preload:+:}$(g++ -print-file-name=$library); done
# CPython and the provider library are not instrumented: leaks of theirs are no finding, and locks of theirs are invisible
# to the thread sanitizer, so what is called from them is left out.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS="halt_on_error=0:exitcode=66:suppressions=$PWD/test/tools/tsan.supp"
# Its shadow memory does not fit an address space of full randomness.
fixed=; [[ $flags == thread ]] && fixed="setarch -R"
PYTHONPATH=$root LD_PRELOAD=$preload exec $fixed "$python" -m pytest -p no:cacheprovider test/pyfabric "$@"
