"""What does this machine give? Reading memory, and products in registers; the limits that other benchmarks name.

    python benchmark/machine_limits.py      # alone on the machine: a few seconds

Compiles benchmark/native/limits.cpp for this CPU. Reading: parts of 128 MiB on huge pages. Products: vdpbf16ps where
the CPU has it, else float32 multiply-adds, which is what bfloat16 is multiplied by there. Best of 600 rounds, with one
thread and with all; the latter is kept under benchmark/results/limits.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe, machine_line, results, save

SOURCE = Path(__file__).parent / "native" / "limits.cpp"


def main() -> int:
    """Exit code 0."""
    cores = len(os.sched_getaffinity(0))
    record: dict[str, object] = {"machine": describe()}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        subprocess.run(
            ["g++", "-std=c++20", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)], check=True
        )
        for threads in sorted({1, cores}):
            answer = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
            _, rate, operations = (float(word) for word in answer.split())
            print(f"{threads} threads: {rate / 1e9:.1f} GB/s, {operations / 1e9:.0f} GFLOP/s", flush=True)
            record |= {"threads": threads, "bytes_per_s": rate, "flops": operations}
    print(machine_line(describe()))
    save(results("limits") / "limits.json", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
