"""Load for a serving engine and the arithmetic of its answers: `python -m sglang.bench_serving`, and a library."""
