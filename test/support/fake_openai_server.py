"""A small HTTP server that speaks the native and the OpenAI surface, for tests of clients, launchers and balancers.

It needs the standard library alone, so it starts in a few milliseconds. A request may ask for trouble through a `fake`
object in its body: `status` answers with that HTTP status, `error_after` breaks the stream with an error event after so
many tokens, `cut_after` closes it without an end, `split` writes the stream in pieces of so many bytes, `delay` sleeps
so many seconds before each token, `per_chunk` puts so many tokens into a chunk, and `no_usage` leaves token counts out.
`continuous_usage_stats` among the stream options puts token counts into every event, as vLLM does. SIGUSR1 lets it die.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORD = " tok"


class Cut(Exception):
    """The stream ends here, without its closing event."""


def prompt_tokens(body: dict[str, Any]) -> int:
    """How many tokens the prompt has, where a token is a word or an id."""
    if "input_ids" in body:
        return len(body["input_ids"])
    if "messages" in body:
        return sum(len(message["content"].split()) for message in body["messages"])
    prompt = body.get("text", body.get("prompt", ""))
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def max_tokens(body: dict[str, Any]) -> int:
    """How many tokens the request asks for."""
    sampling = body.get("sampling_params", {})
    return int(sampling.get("max_new_tokens", body.get("max_completion_tokens", body.get("max_tokens", 4))))


def chunk(path: str, body: dict[str, Any], text: str, done: int, finish: str | None) -> dict[str, Any]:
    """One piece of an answer, in the dialect of `path`; `text` is what is new in it, `done` the tokens so far."""
    usage = {
        "prompt_tokens": prompt_tokens(body),
        "completion_tokens": done,
        "total_tokens": prompt_tokens(body) + done,
    }
    counted = not body.get("fake", {}).get("no_usage")
    if path == "/generate":
        meta: dict[str, Any] = {"id": "fake", "finish_reason": {"type": finish} if finish else None}
        return {"text": WORD * done, "meta_info": meta | (usage | {"cached_tokens": 0} if counted else {})}
    message = {"role": "assistant", "content": text}
    where = {"text": text} if path == "/v1/completions" else {"delta": message, "message": message}
    answer: dict[str, Any] = {"id": "fake", "choices": [{"index": 0, "finish_reason": finish, **where}]}
    always = body.get("stream_options", {}).get("continuous_usage_stats")
    return answer | ({"usage": usage} if counted and (always or (finish and not body.get("stream"))) else {})


def stream(path: str, body: dict[str, Any]) -> Iterator[bytes]:
    """The events of one answer, as they go on the wire."""
    fake, total = body.get("fake", {}), max_tokens(body)
    step = fake.get("per_chunk", 1)
    for done in [*range(step, total, step), total]:
        time.sleep(fake.get("delay", 0.0))
        if done > fake.get("error_after", total):
            yield b'data: {"error": {"message": "the fake engine broke", "type": "EngineError"}}\n\n'
            return
        if done > fake.get("cut_after", total):
            raise Cut
        new = WORD * (step if done < total else (total - 1) % step + 1)
        yield event(chunk(path, body, new, done, "length" if done == total else None))
    if path != "/generate" and body.get("stream_options", {}).get("include_usage") and not fake.get("no_usage"):
        last = chunk(path, body | {"stream": False}, "", total, "length")
        yield event({"id": "fake", "choices": [], "usage": last["usage"]})
    yield b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


class Handler(BaseHTTPRequestHandler):
    """Answers one connection. `server` is a FakeServer."""

    protocol_version = "HTTP/1.1"
    server: "FakeServer"

    def log_message(self, format: str, *args: object) -> None:
        """Access logs only where they were asked for."""
        if self.server.options.access_log:
            sys.stdout.write(f"{self.requestline}\n")
            sys.stdout.flush()

    def reply(self, payload: object, status: int = 200, content_type: str = "application/json") -> None:
        """Send one whole body."""
        data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        options = self.server.options
        pages: dict[str, object] = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": options.model, "object": "model"}]},
            "/server_info": {"model_path": options.model, "disagg_mode": options.disagg_mode},
            "/get_server_info": {"model_path": options.model},
            "/model_info": {"model_path": options.model, "is_generation": True},
            "/get_model_info": {"model_path": options.model, "is_generation": True},
        }
        if self.path == "/metrics":
            self.reply(self.server.metrics(), content_type="text/plain; version=0.0.4")
        elif self.path in pages and self.server.healthy():
            self.reply(pages[self.path])
        else:
            self.reply({"error": {"message": f"no {self.path}"}}, 503 if self.path in pages else 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(raw) if raw else {}
        if self.path == "/flush_cache":
            self.server.flushed += 1
            self.reply("Cache flushed.", content_type="text/plain")
            return
        refuse = 503 if self.server.options.refuse_native and self.path == "/generate" else 0
        if status := body.get("fake", {}).get("status", refuse):
            self.reply({"error": {"message": "the fake engine refuses", "type": "fake"}}, status)
            return
        self.server.requests.append(body)
        if body.get("stream"):
            self.send_stream(body)
        else:
            total = max_tokens(body)
            self.reply(chunk(self.path, body, WORD * total, total, "length"))

    def send_stream(self, body: dict[str, Any]) -> None:
        """Send an event stream, in pieces of `split` bytes where that was asked for."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        size = body.get("fake", {}).get("split", 1 << 20)
        try:
            for data in stream(self.path, body):
                for start in range(0, len(data), size):
                    piece = data[start : start + size]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
        except Cut:
            pass
        except OSError:
            self.close_connection = True  # the client left
            return
        self.wfile.write(b"0\r\n\r\n")


class FakeServer(ThreadingHTTPServer):
    """The server and what it has seen."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet about clients that left."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.requests: list[dict[str, Any]] = []
        self.flushed = 0
        self.ready_at = time.monotonic() + options.ready_after
        super().__init__((options.host, options.port), Handler)

    def healthy(self) -> bool:
        """Whether `--ready-after` seconds have passed."""
        return time.monotonic() >= self.ready_at

    def metrics(self) -> str:
        """Counters as a prefill or a decode engine would export them: 1 MB a request, 95% of it posted early."""
        count = len(self.requests)
        return (
            "# TYPE sglang:kv_transfer_bytes_total counter\n"
            f'sglang:kv_transfer_bytes_total{{model_name="fake"}} {count * 1e6}\n'
            f"sglang:kv_bytes_made_in_forward_total {count * 1e6}\n"
            f'sglang:kv_bytes_posted_in_forward_total{{model_name="fake"}} {count * 0.95e6}\n'
            f"sglang:kv_transfer_latency_ms_sum {count * 2.0}\n"
            f"sglang:kv_transfer_latency_ms_count {count}\n"
        )


def parse() -> argparse.Namespace:
    """The command line; flags of a real engine that mean nothing here are accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="fake-model")
    parser.add_argument("--disagg-mode", default="null")
    parser.add_argument("--ready-after", type=float, default=0.0, help="seconds until /health answers 200")
    parser.add_argument("--die-after", type=float, default=0.0, help="exit with code 7 after so many seconds")
    parser.add_argument("--helper", action="store_true", help="start a child of its own that sleeps")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--refuse-native", action="store_true", help="answer /generate with 503")
    parser.add_argument("--access-log", action="store_true")
    return parser.parse_known_args()[0]


def die() -> None:
    """Leave as a crashing engine would: with a last word and a code."""
    sys.stderr.write("fatal: the fake engine gives up\n")
    sys.stderr.flush()
    os._exit(7)


def main() -> None:
    """Serve until SIGTERM."""
    options = parse()
    stop = signal.SIG_IGN if options.stubborn else lambda *_: os._exit(0)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, lambda *_: die())
    if options.helper:
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stdout.write(f"helper pid {helper.pid}\n")
    if options.die_after:
        threading.Timer(options.die_after, die).start()
    server = FakeServer(options)
    sys.stdout.write(f"listening on {server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
