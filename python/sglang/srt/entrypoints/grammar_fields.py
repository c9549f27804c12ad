"""Grammars in requests, whatever they are called there."""

from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from sglang.srt.core.grammar import GrammarKind, GrammarSpec
from sglang.srt.errors import RequestError

Json = str | dict[str, Any]


def one_grammar(fields: dict[GrammarKind, Json | None]) -> GrammarSpec | None:
    """The only field that is given. Raises RequestError where several are."""
    given = [(kind, value) for kind, value in fields.items() if value is not None]
    if len(given) > 1:
        names = ", ".join(kind for kind, _ in given)
        raise RequestError(f"{names}: an output can have one grammar", param=given[1][0])
    if not given:
        return None
    kind, value = given[0]
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return GrammarSpec(kind=kind, text=tag_of(text) if kind == "structural_tag" else text)


def tag_of(text: str) -> str:
    """A structural tag in today's form: {"structures", "triggers"} is how SGLang used to write triggered tags."""
    try:
        tag = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text  # the grammar library will say what is wrong with it
    if not isinstance(tag, dict) or "structures" not in tag or "format" in tag:
        return text
    try:
        tags = [
            {
                "type": "tag",
                "begin": item["begin"],
                "content": {"type": "json_schema", "json_schema": item["schema"]},
                "end": item["end"],
            }
            for item in tag["structures"]
        ]
        form = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
        return orjson.dumps({"type": "structural_tag", "format": form}).decode()
    except (KeyError, TypeError) as error:
        raise RequestError(
            f"structural_tag: {error}; structures have begin, schema, end", param="structural_tag"
        ) from error


class JsonSchema(BaseModel):
    """`response_format.json_schema`."""

    model_config = ConfigDict(strict=True, extra="ignore")
    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """The schema is kept to either way."""


class ResponseFormat(BaseModel):
    """`response_format`: text, any JSON object, a schema, or SGLang's structural tags."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> GrammarSpec | None:
        """Raises RequestError where the type's own field is missing."""
        match self.type:
            case "text":
                return None
            case "json_object":
                return GrammarSpec(kind="json_object")
            case "json_schema":
                if self.json_schema is None:
                    raise RequestError("response_format.json_schema: required", param="response_format")
                return GrammarSpec(kind="json_schema", text=orjson.dumps(self.json_schema.schema_).decode())
            case "structural_tag":
                text = orjson.dumps({"type": self.type, **(self.model_extra or {})}).decode()
                return GrammarSpec(kind="structural_tag", text=tag_of(text))
