"""How many short streaming requests a second the front serves: `python test/support/front_load.py`.

The scripted scheduler and the load generator (raw sockets, keep-alive) are processes of their own on the same cores.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "python")]

import uvloop  # noqa: E402


async def connection(port: int, body: bytes, path: str, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    for _ in range(count):
        writer.write(request)
        await reader.readuntil(b"[DONE]")
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()


def load(port: int, path: str, body: bytes, requests: int, connections: int) -> None:
    async def main() -> None:
        began = time.perf_counter()
        await asyncio.gather(*(connection(port, body, path, requests // connections) for _ in range(connections)))
        rate = requests / (time.perf_counter() - began)
        print(f"{path}: {rate:.0f} streaming requests/s, {connections} at a time")

    uvloop.run(main())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--model", default="", help="named in every request; other servers insist on it")
    arguments = parser.parse_args()
    text = f'"max_tokens":{arguments.tokens},"stream":true'
    if arguments.model:
        text += f',"model":{json.dumps(arguments.model)}'
    for path, body in (
        ("/v1/completions", '{"prompt":"one two three",' + text + "}"),
        ("/v1/chat/completions", '{"messages":[{"role":"user","content":"hi"}],' + text + "}"),
    ):
        sender = multiprocessing.get_context("spawn").Process(
            target=load, args=(arguments.port, path, body.encode(), arguments.requests, arguments.connections)
        )
        sender.start()
        sender.join()


if __name__ == "__main__":
    main()
