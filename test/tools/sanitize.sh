#!/usr/bin/env bash
# Builds the native part of pyfabric with sanitizers, beside the normal build, and runs its fuzz or its tests.
#   test/tools/sanitize.sh address|thread fuzz [OPERATIONS [SEED]]
#   test/tools/sanitize.sh address|thread tests [pytest arguments]
#   test/tools/sanitize.sh address|thread quick [pytest arguments]   a short fuzz beside the tests that need no processes
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
kind=${1:-} what=${2:-}
usage() { sed -n 's/^#   /usage: /p' "$0" >&2; exit 2; }
case $kind in
  address) flags=address,undefined; libraries="libasan.so libubsan.so"; fixed= ;;
  thread) flags=thread; libraries=libtsan.so; fixed="setarch -R" ;; # its shadow memory wants a fixed address space
  *) usage ;;
esac
case $what in
  fuzz) targets=pyfabric_fuzz ;;
  tests) targets=_core ;;
  quick) targets="_core pyfabric_fuzz" ;;
  *) usage ;;
esac
shift 2

folder=$PWD/build/sanitize-$kind
mkdir -p build
export PATH=$PWD/.venv/bin:$PATH
# shellcheck disable=SC2086
{ cmake -G Ninja -S . -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$python" -DPYFABRIC_SANITIZE=$flags &&
  cmake --build "$folder" --target $targets; } > "$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }

# CPython and the provider library are not instrumented: their locks are invisible to the thread sanitizer, so what is
# called from them is left out.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="halt_on_error=0:exitcode=66:suppressions=$PWD/test/tools/tsan.supp"

fuzz() {
  local operations=${1:-20000} seed=${2:-7} provider providers="mapped tcp shm" form=
  # Processes are invisible to each other's thread sanitizer: there the nodes are threads, which shm does not bear.
  if [[ $kind == thread ]]; then providers="mapped tcp" form=--threads; fi
  local fabric; fabric=$("$python" -c 'import pyfabric; print(pyfabric.LIBRARY.path.parent)')
  # Whole processes of ours: here leaks are findings, but for the provider library's own.
  local -x ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 LSAN_OPTIONS=suppressions=$PWD/test/tools/lsan.supp:print_suppressions=0
  for provider in $providers; do
    LD_LIBRARY_PATH=$fabric $fixed "$folder/test/pyfabric/native/pyfabric_fuzz" $provider "$operations" "$seed" $form
  done
}

tests() {
  # A package of the same Python files and the other module; the finder of the editable install would find the normal one.
  local root=$folder/root preload= library
  mkdir -p "$root/pyfabric"
  ln -sf "$PWD"/python/pyfabric/*.py "$folder"/_core*.so "$root/pyfabric/"
  cat > "$root/sitecustomize.py" <<'P'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
P
  for library in $libraries; do preload+=${preload:+:}$(g++ -print-file-name=$library); done
  # test_fuzz.py runs this script.
  PYTHONPATH=$root LD_PRELOAD=$preload $fixed "$python" -m pytest -p no:cacheprovider --ignore test/pyfabric/test_fuzz.py test/pyfabric "$@"
}

# Both at once: the tests mostly wait. Killed and stopped processes are the fuzz's business here, idle time is nobody's.
quick() {
  fuzz 20000 > "$folder.fuzz" 2>&1 & local running=$! failed=0
  tests --ignore test/pyfabric/test_processes.py --ignore test/pyfabric/test_machine.py -k "not idle_engine" "$@" || failed=1
  wait $running || failed=1
  cat "$folder.fuzz"
  return $failed
}

$what "$@"
