"""`sglang COMMAND ...`: the same programs as `python -m sglang.COMMAND`."""

import runpy
import sys

COMMANDS = {
    "launch-server": ("sglang.launch_server", "serve one model over HTTP"),
    "launch-cluster": ("sglang.launch_cluster", "start prefill and decode engines and a balancer from a recipe"),
    "bench-serving": ("sglang.bench_serving", "measure a running server"),
    "bench-offline-throughput": ("sglang.bench_offline_throughput", "measure the engine without HTTP"),
    "bench-one-batch": ("sglang.bench_one_batch", "measure the model without the engine"),
}


def main() -> int:
    """Runs the command that argv names; returns 2 for an unknown one."""
    name = sys.argv[1].replace("_", "-") if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        module = COMMANDS[name][0]
        sys.argv = [f"sglang {name}", *sys.argv[2:]]
        runpy.run_module(module, run_name="__main__", alter_sys=False)
        return 0
    asked = name in ("-h", "--help", "help")
    lines = ["usage: sglang COMMAND [arguments]; `sglang COMMAND --help` explains them", ""]
    lines += [f"  {command:<26}{text}" for command, (_, text) in COMMANDS.items()]
    if name and not asked:
        lines.insert(0, f"sglang: no such command: {name}")
    (sys.stdout if asked else sys.stderr).write("\n".join(lines) + "\n")
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
