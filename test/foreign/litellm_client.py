"""What litellm does with a server; a process of its own, since the library leaves an event loop open. Argument: URL."""

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


def main() -> None:
    whole = litellm.completion(**ASKED)
    assert whole.usage.completion_tokens == 8
    parts = [part.choices[0].delta.content or "" for part in litellm.completion(**ASKED, stream=True)]
    assert "".join(parts) == whole.choices[0].message.content
    try:
        litellm.completion(**{**ASKED, "temperature": -3})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a negative temperature was accepted")
    print("litellm: passed")


if __name__ == "__main__":
    main()
