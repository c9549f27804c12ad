"""A cluster on a terminal: who is still starting, and everybody's log under a name and a colour."""

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from sglang.cluster.recipe import Recipe

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


class ClusterDisplay:
    """Use as a context manager around the start; `log` works inside and after it.

    `log_files` sends logs to open files by name instead of the console.
    """

    def __init__(self, recipe: Recipe, console: Console, log_files: dict[str, TextIO] | None = None) -> None:
        self.names = [engine.name for engine in recipe.engines] + (["router"] if recipe.router else [])
        self._console = console
        self._files = log_files
        self._width = max(len(name) for name in self.names)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks = {name: self._progress.add_task(f"{name} is starting", total=1) for name in self.names}

    def __enter__(self) -> "ClusterDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def ready(self, name: str, seconds: float) -> None:
        """Show that one process is ready."""
        self._progress.update(self._tasks[name], completed=1, visible=False)
        self._print(name, Text(f"ready after {seconds:.1f} s", style="bold"))

    def log(self, name: str, line: str) -> None:
        """Show one line of a process's log, or write it to the process's file."""
        if self._files is None:
            self._print(name, Text.from_ansi(line))
        else:
            self._files[name].write(line + "\n")
            self._files[name].flush()

    def _print(self, name: str, text: Text) -> None:
        colour = COLOURS[self.names.index(name) % len(COLOURS)]
        prefix = Text(f"{name:<{self._width}} | ", style=colour)
        self._console.print(prefix + text, soft_wrap=True, highlight=False)
