"""The conversation tree of one session: finds parents and answered calls. Pure; holds only what is recorded.

A conversation is identified by a chain of hashes, seeded with the tools and template arguments, one link per message. A recorded
interaction stands at the link after its answer; a new call's parent stands at the longest such link on its own chain. Running and failed
calls are not recorded, so they are never parents. Among interactions with the same transcript the oldest is the parent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rlrun.proto import session_pb2
from rlrun_dataproxy.messages import Message, answer_digest, canonical, parse_message, parse_template_kwargs, parse_tools

# Look-ups that are kept; they only save work, so a full table is thrown away.
MAX_LINKS = 16_384
MAX_SEEDS = 64


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded interaction. `after`: the link after its answer, for its children. `num_tokens`: prompt and output of the whole path."""

    record: session_pb2.InteractionRecord
    parent: Node | None
    after: bytes
    num_tokens: int

    @property
    def id(self) -> str:
        return self.record.id

    def token_ids(self) -> bytes:
        """Prompt and output along the path from the root, packed."""
        pieces: list[bytes] = []
        node: Node | None = self
        while node is not None:
            pieces += (node.record.output_ids, node.record.new_prompt_ids)
            node = node.parent
        pieces.reverse()
        return b"".join(pieces)


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request stands: its parent, the messages that the parent covers, the link after all of its messages.

    `key_link` is the link that its answer will hang on: the one before an ephemeral tail, if there is one. `parsed`: the messages that
    were not seen at their place before, by index.
    """

    parent: Node | None
    num_parent_messages: int
    link: bytes
    key_link: bytes
    parsed: Mapping[int, Message]


class ConversationTree:
    """One session's recorded interactions.

    Args:
        ephemeral: last messages whose text matches are not part of the key that children look for, since the client leaves them out
            of later requests. They stay in the recorded ids, which a child's prompt extends.
    """

    def __init__(self, *, ephemeral: re.Pattern[str] | None = None) -> None:
        self._ephemeral = ephemeral
        self._links: dict[tuple[bytes, bytes], tuple[bytes, bool]] = {}
        self._seeds: dict[tuple[bytes, bytes], bytes] = {}
        self._by_link: dict[bytes, Node] = {}
        self._by_id: dict[str, Node] = {}
        self._by_request: dict[bytes, list[Node]] = {}
        self._last: Node | None = None
        self._last_walk: tuple[bytes, list[bytes], list[tuple[bytes, bool]]] = (b"", [], [])

    def merge(self, records: Iterable[session_pb2.InteractionRecord]) -> None:
        """Adds what Redis holds and this tree does not."""
        for record in sorted(records, key=lambda one: one.index):
            if record.id in self._by_id:
                continue
            parent = self._by_id[record.parent_id] if record.parent_id else None
            start = parent.after if parent else self._seed(record.tools, record.chat_template_kwargs)
            link, key_link = self._follow(start, record.new_messages, first_index=record.num_parent_messages)
            self.add(record, parent=parent, link=link, key_link=key_link)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, interaction_id: str) -> bool:
        return interaction_id in self._by_id

    @property
    def last(self) -> Node | None:
        return self._last

    @property
    def next_index(self) -> int:
        return self._last.record.index + 1 if self._last else 0

    def locate(self, messages: Sequence[bytes], *, tools: bytes, template_kwargs: bytes) -> Position:
        """Parent of a request.

        Raises:
            InvalidRequest: a message that was not seen before is wrong.
        """
        seed = self._seed(tools, template_kwargs)
        raws, steps = self._walked(seed, messages)
        link = steps[-1][0] if steps else seed
        parsed: dict[int, Message] = {}
        for index in range(len(steps), len(raws)):
            step = self._step(link, raws[index], index, parsed)
            steps.append(step)
            link = step[0]
        self._last_walk = (seed, raws, steps)
        parent, covered = self._parent(steps)
        key_link = next((link for link, ephemeral in reversed(steps) if not ephemeral), seed)
        return Position(parent=parent, num_parent_messages=covered, link=link, key_link=key_link, parsed=parsed)

    def add(self, record: session_pb2.InteractionRecord, *, parent: Node | None, link: bytes, key_link: bytes) -> Node:
        digest = answer_digest(record.content, [(call.id, call.name, call.arguments) for call in record.tool_calls])
        new_tokens = (len(record.new_prompt_ids) + len(record.output_ids)) // 4
        node = Node(
            record=record,
            parent=parent,
            after=_link(key_link, digest),
            num_tokens=new_tokens + (parent.num_tokens if parent else 0),
        )
        self._by_id[record.id] = node
        self._by_link.setdefault(node.after, node)
        if link != key_link:  # a client that does repeat its ephemeral message
            self._by_link.setdefault(_link(link, digest), node)
        self._by_request.setdefault(record.request_hash, []).append(node)
        if self._last is None or record.index > self._last.record.index:
            self._last = node
        return node

    def answered(self, request_hash: bytes, idempotency_key: str) -> Node | None:
        """The latest interaction that answered the same request; with a key only one that had the same key."""
        for node in reversed(self._by_request.get(request_hash, ())):
            if not idempotency_key or node.record.idempotency_key == idempotency_key:
                return node
        return None

    def _walked(self, seed: bytes, messages: Sequence[bytes]) -> tuple[list[bytes], list[tuple[bytes, bool]]]:
        """The messages, and the steps of as many first ones as the request before had too: comparing bytes is cheaper than hashing them."""
        raws = list(messages)
        last_seed, last_raws, last_steps = self._last_walk
        if seed != last_seed:
            return raws, []
        shared = 0
        for raw, last in zip(raws, last_raws, strict=False):
            if raw != last:
                break
            shared += 1
        raws[:shared] = last_raws[:shared]  # one copy in memory
        return raws, last_steps[:shared]

    def _parent(self, steps: Sequence[tuple[bytes, bool]]) -> tuple[Node | None, int]:
        """The recorded interaction that covers the most messages, and how many."""
        for index in range(len(steps) - 1, -1, -1):
            if (node := self._by_link.get(steps[index][0])) is not None:
                return node, index + 1
        return None, 0

    def _seed(self, tools: bytes, template_kwargs: bytes) -> bytes:
        key = (tools, template_kwargs)
        if (seed := self._seeds.get(key)) is None:
            if len(self._seeds) >= MAX_SEEDS:
                self._seeds.clear()
            value = canonical([parse_tools(tools), parse_template_kwargs(template_kwargs)])
            seed = self._seeds[key] = hashlib.blake2b(value, digest_size=16).digest()
        return seed

    def _follow(self, link: bytes, messages: Sequence[bytes], *, first_index: int) -> tuple[bytes, bytes]:
        key_link = link
        for offset, raw in enumerate(messages):
            link, ephemeral = self._step(link, raw, first_index + offset, {})
            if not ephemeral:
                key_link = link
        return link, key_link

    def _step(self, link: bytes, raw: bytes, index: int, parsed: dict[int, Message]) -> tuple[bytes, bool]:
        """Next link, and whether the message is ephemeral. A message that was seen at this place costs one look-up."""
        if (step := self._links.get((link, raw))) is None:
            if len(self._links) >= MAX_LINKS:
                self._links.clear()
            message = parsed[index] = parse_message(raw, index)
            step = self._links[link, raw] = (_link(link, message.digest), self._is_ephemeral(message))
        return step

    def _is_ephemeral(self, message: Message) -> bool:
        return self._ephemeral is not None and self._ephemeral.search(message.text) is not None


def request_hash(link: bytes, parameters: bytes) -> bytes:
    """SHA-256 over the history (its last link) and the parameters of a request."""
    return hashlib.sha256(link + parameters).digest()


def _link(before: bytes, digest: bytes) -> bytes:
    return hashlib.blake2b(before + digest, digest_size=16).digest()
