"""What litellm does with a server; a process of its own, since the library leaves an event loop open. Argument: URL."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch its price list otherwise

import litellm

ASKED = {
    "model": "openai/smol",
    "api_base": sys.argv[1] + "/v1",
    "api_key": "none",
    "messages": [{"role": "user", "content": "Count to five."}],
    "max_tokens": 8,
    "temperature": 0,
}


TOOL = {
    "type": "function",
    "function": {
        "name": "book_table",
        "parameters": {
            "type": "object",
            "properties": {"day": {"enum": ["Mon", "Tue"]}},
            "required": ["day"],
            "additionalProperties": False,
        },
    },
}


def _tools() -> None:
    asked = {**ASKED, "max_tokens": 80, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = litellm.completion(**asked).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["day"] in ("Mon", "Tue")
    schema = {"name": "day", "schema": TOOL["function"]["parameters"], "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    text = litellm.completion(**{**ASKED, "max_tokens": 80}, response_format=form).choices[0].message.content
    assert json.loads(text)["day"] in ("Mon", "Tue")


def main() -> None:
    whole = litellm.completion(**ASKED)
    assert whole.usage.completion_tokens == 8
    parts = [part.choices[0].delta.content or "" for part in litellm.completion(**ASKED, stream=True)]
    assert "".join(parts) == whole.choices[0].message.content
    _tools()
    try:
        litellm.completion(**{**ASKED, "temperature": -3})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a negative temperature was accepted")
    print("litellm: passed")


if __name__ == "__main__":
    main()
