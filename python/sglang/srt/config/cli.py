"""Command line and configuration file -> `ServerConfig`. The command line wins over the file."""

import argparse
import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import yaml

from sglang.srt.config import hardware
from sglang.srt.config.flags import GROUPS, REFUSALS, Flag, Refusal
from sglang.srt.config.resolve import resolve
from sglang.srt.config.server import ServerConfig
from sglang.srt.errors import ConfigError

_FIELDS = {field.name: field for field in msgspec.structs.fields(ServerConfig)}
_TRANSFER = "disaggregation_transfer_backend"


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, so that every wrong command line takes one way out."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def parse(argv: Sequence[str]) -> ServerConfig:
    """Reads `argv` (without the program's name) and the file that --config names; completes and checks the result.

    Raises ConfigError, with a message of one line that names the flag; `--help` prints and raises SystemExit(0).
    """
    parser = build_parser()
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ConfigError(_unrecognised(unknown[0], parser))
    given: dict[str, object] = vars(known)
    file = given.pop("config", None)
    merged = {**(read_file(Path(str(file))) if file else {}), **_refuse(given)}
    return resolve(merged, hardware.detect())


def read_file(path: Path) -> dict[str, object]:
    """The settings in a YAML file, keyed by field. Raises ConfigError for an unreadable file or an unknown key."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config: {path} must hold `flag-name: value` lines")
    return from_mapping({str(key): value for key, value in content.items()}, where=str(path))


def from_mapping(settings: Mapping[str, object], *, where: str) -> dict[str, object]:
    """Settings with flag names as keys (dashes or underscores, aliases allowed) -> the same keyed by field.

    Raises ConfigError that names every unknown key.
    """
    fields = {spelling: flag.field for flag in _flags() for spelling in _keys(flag)}
    refused = {rule.name[2:].replace("-", "_"): rule for rule in REFUSALS}
    result: dict[str, object] = {}
    unknown: list[str] = []
    for key, value in settings.items():
        name = key.removeprefix("--").replace("-", "_")
        if name in fields:
            result[fields[name]] = value
        elif name in refused:
            result[name] = _refused_value(refused[name], value)
        else:
            unknown.append(key)
    if unknown:
        raise ConfigError(f"{where}: unknown setting {', '.join(sorted(unknown))}")
    return _refuse(result)


def to_argv(settings: Mapping[str, object]) -> list[str]:
    """Settings keyed by field or flag name -> a command line that `parse` reads back to the same values."""
    argv: list[str] = []
    for field, value in from_mapping(dict(settings), where="settings").items():
        name = "--" + field.replace("_", "-")
        if isinstance(value, bool):
            argv.append(name if value else name.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            argv += [name, ",".join(str(item) for item in value)]
        else:
            argv += [name, str(value)]
    return argv


def build_parser() -> argparse.ArgumentParser:
    """The parser behind `parse`. It sets no defaults: what the user typed must be told from what they did not."""
    parser = _Parser(
        prog="sglang launch-server",
        description="Serve one model over HTTP with OpenAI's and SGLang's interfaces.",
        epilog="Example: sglang launch-server --model-path models/SmolLM2-135M-Instruct --port 30000",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file of `flag-name: value` lines; the command line wins."
    )
    for title, flags in GROUPS:
        group = parser.add_argument_group(title)
        for flag in flags:
            _add(group, flag)
    for rule in REFUSALS:
        _add_refusal(parser, rule)
    return parser


def _flags() -> Iterator[Flag]:
    for _, flags in GROUPS:
        yield from flags


def _keys(flag: Flag) -> list[str]:
    return [flag.field, *(alias[2:].replace("-", "_") for alias in flag.aliases)]


def _add(group: argparse._ArgumentGroup, flag: Flag) -> None:
    field = _FIELDS[flag.field]
    names = (flag.name, *flag.aliases)
    text = argparse.SUPPRESS if flag.hidden else flag.help.replace("%", "%%") + _default_note(field.default)
    if field.type is bool:
        group.add_argument(*names, dest=flag.field, action=argparse.BooleanOptionalAction, help=text)
        return
    kind = field.type
    choices: list[str] | None = None
    nargs: str | None = None
    if typing.get_origin(kind) is typing.Literal:
        choices, kind = list(typing.get_args(kind)), str
    elif typing.get_origin(kind) is tuple:
        kind, nargs = str, "+"
    assert isinstance(kind, type), f"{flag.field}: a flag needs a plain type"
    metavar = None if choices else kind.__name__.upper()
    group.add_argument(*names, dest=flag.field, type=kind, nargs=nargs, choices=choices, metavar=metavar, help=text)


def _default_note(default: object) -> str:
    if default is msgspec.NODEFAULT:
        return " (required)"
    if isinstance(default, bool | types.NoneType) or default in ("", ()):
        return ""
    return f" (default: {default})"


def _add_refusal(parser: argparse.ArgumentParser, rule: Refusal) -> None:
    if rule.switch:
        parser.add_argument(rule.name, action="store_const", const="", help=argparse.SUPPRESS)
    else:
        parser.add_argument(rule.name, help=argparse.SUPPRESS)


def _refused_value(rule: Refusal, value: object) -> str | None:
    """A file's value of a refused flag as the command line would have given it; None where it was not given."""
    if value is None or value is False:
        return None
    return "" if rule.switch else str(value)


def _refuse(given: Mapping[str, object]) -> dict[str, object]:
    """`given` without the flags that ask for nothing; raises ConfigError for those that ask for what is missing."""
    left = dict(given)
    if left.get(_TRANSFER) in ("auto", "tcp", "shm"):
        left.setdefault("disagg_provider", left.pop(_TRANSFER))
    for rule in REFUSALS:
        value = left.pop(rule.name[2:].replace("-", "_"), None)
        if value is not None and str(value).lower() not in rule.neutral:
            raise ConfigError(f"{rule.name} {value}".rstrip() + f": {rule.reason}")
    return left


def _unrecognised(argument: str, parser: argparse.ArgumentParser) -> str:
    names = [name for action in parser._actions for name in action.option_strings]
    close = difflib.get_close_matches(argument.split("=", 1)[0], names, n=1)
    return f"{argument}: no such flag" + (f"; did you mean {close[0]}?" if close else " (see --help)")
