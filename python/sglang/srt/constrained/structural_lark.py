"""Structural tags (JSON as in OpenAI-style `response_format`) in llguidance's Lark notation."""

import json
from collections.abc import Mapping, Sequence

Format = Mapping[str, object]


def structural_lark(text: str) -> str:
    """A Lark grammar for the structural tag `text`.

    Raises ValueError, TypeError or KeyError for one that is wrong or not supported.
    """
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("format"), dict):
        raise TypeError("a structural tag is an object with a `format`")
    return _Writer().grammar(parsed["format"])


class _Writer:
    """Collects rules; each method returns an expression."""

    def __init__(self) -> None:
        self._rules: list[str] = []

    def grammar(self, form: Format) -> str:
        start = self._of(form)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])

    def _of(self, form: object) -> str:
        if not isinstance(form, dict):
            raise TypeError("a format is an object")
        kind = form.get("type")
        match kind:
            case "const_string":
                return _quoted(form["value"])
            case "json_schema" if form.get("style", "json") == "json":
                return self._rule(f"%json {json.dumps(form['json_schema'])}")
            case "regex":
                return self._rule(f"/{_slashes(form['pattern'])}/")
            case "any_text" if not form.get("excludes"):
                return self._rule("/(?s:.*)/")
            case "sequence":
                return " ".join(self._of(item) for item in _list(form["elements"])) or '""'
            case "or":
                return self._either([self._of(item) for item in _list(form["elements"])])
            case "optional" | "plus" | "star":
                sign = {"optional": "?", "plus": "+", "star": "*"}[str(kind)]
                return f"({self._of(form['content'])}){sign}"
            case "tag":
                return self._tag(form)
            case "tags_with_separator":
                return self._separated(form)
            case "triggered_tags":
                return self._triggered(form)
            case _:
                raise ValueError(f"the llguidance backend has no format {kind!r} of this style")

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _either(self, options: Sequence[str]) -> str:
        if not options:
            raise ValueError("no alternatives")
        return f"({' | '.join(options)})"

    def _tag(self, form: Format, begin: str | None = None) -> str:
        """`begin` replaces the tag's own: what of it a trigger has not matched yet."""
        opening = _text(form["begin"]) if begin is None else begin
        ends = form["end"] if isinstance(form["end"], list) else [form["end"]]
        content = form["content"]
        head = f"{_quoted(opening)} " if opening else ""
        if isinstance(content, dict) and content.get("type") == "any_text" and len(ends) == 1 and ends[0]:
            # Text up to the first end: lazy, or it would swallow the end.
            return head + self._rule(f"/(?s:.*)/ {_quoted(ends[0])}", "[lazy]")
        closing = self._either([_quoted(end) for end in ends])
        return f"{head}{self._of(content)} {closing}"

    def _separated(self, form: Format) -> str:
        one = self._rule(self._either([self._tag(tag) for tag in _tags(form)]))
        several = one if form.get("stop_after_first") else f"{one} ({_quoted(form['separator'])} {one})*"
        return several if form.get("at_least_one") else f"({several})?"

    def _triggered(self, form: Format) -> str:
        tags, triggers = _tags(form), [_text(trigger) for trigger in _list(form["triggers"])]
        if form.get("excludes") or not all(triggers):
            raise ValueError("the llguidance backend has triggered tags without excludes and with triggers only")
        chains = []
        for trigger in triggers:
            mine = [tag for tag in tags if _text(tag["begin"]).startswith(trigger)]
            begun = self._rule(f"/(?s:.*)/ {_quoted(trigger)}", "[lazy]")
            rest = self._either([self._tag(tag, _text(tag["begin"])[len(trigger) :]) for tag in mine])
            chains.append(f"{begun} {rest}")
        if any(not any(_text(tag["begin"]).startswith(trigger) for trigger in triggers) for tag in tags):
            raise ValueError("every tag must begin with a trigger")
        if form.get("at_least_one"):
            first = self._either([self._tag(tag) for tag in tags])
            return first if form.get("stop_after_first") else f"{first} ({self._either(chains)})* /(?s:.*)/"
        if form.get("stop_after_first"):
            return f"({self._either(chains)} | /(?s:.*)/)"
        return f"({self._either(chains)})* /(?s:.*)/"


def _tags(form: Format) -> list[Format]:
    tags = _list(form["tags"])
    if not all(isinstance(tag, dict) for tag in tags):
        raise ValueError("a tag is an object")
    return [tag for tag in tags if isinstance(tag, dict)]


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("the llguidance backend has tags of strings only")
    return value


def _quoted(value: object) -> str:
    return json.dumps(_text(value), ensure_ascii=False)


def _slashes(pattern: object) -> str:
    return _text(pattern).replace("\\/", "/").replace("/", "\\/")
