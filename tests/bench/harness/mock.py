"""An engine that answers at once, or after a fixed delay, with a fixed output: raw asyncio, so that it is never the bottleneck.

`POST /v1/chat/completions` answers in the form of vLLM (ids and logprobs where the request asks for them), `POST /generate` in the
form of SGLang. `GET /control?delay_ms=20` sets the delay, `GET /stats` shows the calls and the most that were under way at once;
both start the count again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from pathlib import Path

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHAT_TOKENS = re.compile(rb'"max(?:_completion)?_tokens": *(\d+)')
_ID_TOKENS = re.compile(rb'"max_new_tokens": *(\d+)')
_MIN_PROMPT_TOKENS = 512


class Engine:
    """The replies, each made once; and the counters."""

    def __init__(self, replies: dict[int, dict[str, object]]) -> None:
        self._replies = replies
        self._chat: dict[tuple[int, int, bool], bytes] = {}
        self._ids: dict[int, bytes] = {}
        self.delay_seconds = 0.0
        self.num_calls = self.num_running = self.peak = 0

    def reset(self) -> None:
        self.num_calls = self.peak = 0

    def chat(self, body: bytes) -> bytes:
        """512 prompt ids for a short body; for longer ones the power of two below a quarter of its bytes."""
        num_prompt = _MIN_PROMPT_TOKENS
        while num_prompt * 2 <= len(body) // 4:
            num_prompt *= 2
        key = (num_prompt, self._length(_CHAT_TOKENS.search(body)), b'"logprobs"' in body or b'"return_token_ids"' in body)
        if (made := self._chat.get(key)) is None:
            made = self._chat[key] = _answer(self._make_chat(*key))
        return made

    def ids(self, body: bytes) -> bytes:
        length = self._length(_ID_TOKENS.search(body))
        if (made := self._ids.get(length)) is None:
            made = self._ids[length] = _answer(self._make_ids(length))
        return made

    def _length(self, found: re.Match[bytes] | None) -> int:
        wanted = int(found.group(1)) if found else 0
        return wanted if wanted in self._replies else min(self._replies)

    def _make_chat(self, num_prompt: int, length: int, with_ids: bool) -> dict[str, object]:
        reply = self._replies[length]
        choice: dict[str, object] = {
            "index": 0,
            "message": {"role": "assistant", "content": reply["text"], "refusal": None, "tool_calls": [], "reasoning_content": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
        answer: dict[str, object] = {
            "id": "chatcmpl-0123456789abcdef0123456789abcdef",
            "object": "chat.completion",
            "created": 1_750_000_000,
            "model": "policy",
            "choices": [choice],
            "usage": {"prompt_tokens": num_prompt, "completion_tokens": length, "total_tokens": num_prompt + length},
            "prompt_logprobs": None,
        }
        if with_ids:
            rng = random.Random(num_prompt)
            choice["logprobs"] = {
                "content": [
                    {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
                    for token, logprob in zip(reply["tokens"], _logprobs(length), strict=True)  # type: ignore[call-overload]
                ]
            }
            choice["token_ids"] = reply["ids"]
            answer["prompt_token_ids"] = [rng.randrange(16_000) for _ in range(num_prompt)]
        return answer

    def _make_ids(self, length: int) -> dict[str, object]:
        ids = self._replies[length]["ids"]
        pairs = [[logprob, token, None] for logprob, token in zip(_logprobs(length), ids, strict=True)]  # type: ignore[call-overload]
        meta = {
            "id": "0123456789abcdef",
            "finish_reason": {"type": "stop", "matched": ids[-1]},  # type: ignore[index]
            "prompt_tokens": 512,
            "completion_tokens": length,
            "cached_tokens": 0,
            "weight_version": "0",
            "output_token_logprobs": pairs,
        }
        return {"text": "", "output_ids": ids, "meta_info": meta}


def _logprobs(length: int) -> list[float]:
    rng = random.Random(length)
    return [-rng.expovariate(1.5) for _ in range(length)]


def _answer(body: dict[str, object]) -> bytes:
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(encoded), encoded)


class Connection(asyncio.Protocol):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            found = _LENGTH.search(head)
            total = end + 4 + (int(found.group(1)) if found else 0)
            if len(self._buffer) < total:
                return
            body = bytes(self._buffer[end + 4 : total])
            del self._buffer[:total]
            self._route(head, body)

    def _route(self, head: bytes, body: bytes) -> None:
        engine = self._engine
        if head.startswith(b"POST"):
            self._call(engine.ids(body) if head.startswith(b"POST /generate ") else engine.chat(body))
        elif head.startswith(b"GET /control"):
            found = re.search(rb"delay_ms=(\d+)", head)
            engine.delay_seconds = int(found.group(1)) / 1000 if found else 0.0
            engine.reset()
            self._write(_answer({"delay_seconds": engine.delay_seconds}))
        elif head.startswith(b"GET /stats"):
            self._write(_answer({"num_calls": engine.num_calls, "peak": engine.peak}))
            engine.reset()
        else:  # health checks and lists of models
            self._write(_answer({"object": "list", "data": [{"id": "policy", "object": "model"}]}))

    def _call(self, answer: bytes) -> None:
        engine = self._engine
        engine.num_calls += 1
        if engine.delay_seconds == 0.0:
            engine.peak = max(engine.peak, 1)
            self._write(answer)
            return
        engine.num_running += 1
        engine.peak = max(engine.peak, engine.num_running)
        self._loop.call_later(engine.delay_seconds, self._end, answer)

    def _end(self, answer: bytes) -> None:
        self._engine.num_running -= 1
        self._write(answer)

    def _write(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def _serve(port: int, replies_file: Path) -> None:
    replies = {int(length): reply for length, reply in json.loads(replies_file.read_text()).items()}
    engine = Engine(replies)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("replies", type=Path, help="JSON: number of tokens -> ids, tokens, text")
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.port, arguments.replies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
