"""Start the engines and the balancer of a recipe: `python -m sglang.launch_cluster recipe.yaml`."""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from sglang.cluster import recipe as recipe_module
from sglang.cluster.cluster import Cluster, plan
from sglang.cluster.commands import Commands, ModuleCommands
from sglang.cluster.display import ClusterDisplay
from sglang.cluster.recipe import Recipe, load_recipe
from sglang.cluster.signals import StoppedError, run_stoppable
from sglang.srt.errors import ConfigError, SglangError


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="launch_cluster",
        description="Start the engines and the balancer of a recipe. Ctrl-C stops all of them; so does one that dies.",
        epilog=recipe_module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="a file, or a recipe of the package, such as tiny/smollm2-1p2d.yaml")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")
    parser.add_argument("--ready-timeout", type=float, default=300.0, help="seconds until all must be ready (300)")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds from SIGTERM to SIGKILL at the end (10)")
    return parser


def main(argv: Sequence[str] | None = None, commands: Commands | None = None) -> int:
    """Run a cluster until a signal (0) or the death of a process (1); 2 for a recipe that cannot work."""
    args = build_parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        recipe = load_recipe(args.recipe)
        if args.dry_run:
            for _, command in plan(recipe, commands or ModuleCommands()):
                sys.stdout.write(shlex.join(command) + "\n")
            return 0
        asyncio.run(_serve(recipe, console, args, commands))
    except StoppedError:
        console.print("stopped", style="bold")
        return 0
    except SglangError as error:
        sys.stderr.write(f"launch_cluster: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def _serve(recipe: Recipe, console: Console, args: argparse.Namespace, commands: Commands | None) -> None:
    display = ClusterDisplay(recipe, console)
    cluster = Cluster(
        recipe,
        on_log=display.log,
        on_ready=display.ready,
        commands=commands,
        ready_timeout=args.ready_timeout,
        grace=args.grace,
    )

    async def serve() -> None:
        with display:
            await cluster.__aenter__()
        try:
            console.print(_invitation(recipe), soft_wrap=True, highlight=False, markup=False)
            await cluster.wait()
        finally:
            await cluster.stop()

    await run_stoppable(serve(), cluster.kill)


def _invitation(recipe: Recipe) -> str:
    body = '{"model": "default", "messages": [{"role": "user", "content": "What is a KV cache?"}], "stream": true}'
    model = recipe.frontends[0].config.served_model_name
    return (
        f"\nReady at {recipe.url} - Ctrl-C stops everything. Try:\n\n"
        f"  curl -N {recipe.url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{body.replace('default', model)}'\n"
    )


if __name__ == "__main__":
    sys.exit(main())
