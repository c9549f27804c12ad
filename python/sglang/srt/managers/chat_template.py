"""Chat templates: a model folder's Jinja text, in a sandbox."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from sglang.srt.errors import CheckpointError, RequestError

MAX_RENDERED = 16 << 20
"""Characters of a rendered conversation; longer than any context, short of exhausting memory."""

Message = Mapping[str, object]


class ChatTemplate:
    """Renders conversations to prompt text."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises CheckpointError where `source` is not Jinja. `special_tokens`: bos_token, eos_token, ..."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"chat template: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt of `messages`, each with role and content (text).

        `continue_final` leaves the last message open, so that the model goes on with it. `variables` are passed to the
        template (enable_thinking, ...). Raises RequestError (400) where the template refuses the conversation.
        """
        context = {**(variables or {}), **self._special_tokens}
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt and not continue_final, **context
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, OverflowError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error
        if len(text) > MAX_RENDERED:
            raise RequestError(f"the rendered messages pass {MAX_RENDERED} characters", param="messages")
        return _cut_after(text, str(messages[-1].get("content", ""))) if continue_final else text


def _cut_after(text: str, content: str) -> str:
    position = text.rfind(content.strip())
    if position < 0:
        raise RequestError("the chat template does not show the final message as it is", param="messages")
    return text[: position + len(content.strip())]


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; rendering just passes its body through."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja prescribes

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:  # noqa: ANN401
    # Jinja's own filter escapes for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
