"""A request and the session's tree -> what to do. Pure: no I/O, no clock."""

from __future__ import annotations

import msgspec

from rlrun.errors import InvalidRequest
from rlrun.proto import session_pb2
from rlrun_dataproxy.budget import max_new_tokens
from rlrun_dataproxy.messages import Message, parse_message, parse_template_kwargs, parse_tools
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.output import ReadingRules
from rlrun_dataproxy.prompt import NewPrompt, PromptBuilder
from rlrun_dataproxy.tokenizer import ChatTokenizer
from rlrun_dataproxy.tree import ConversationTree, Node, Position, request_hash

_NO_TOOL_CALLS = session_pb2.TOOL_CHOICE_NONE


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A request's place in the tree, before anything is tokenised."""

    position: Position
    request_hash: bytes


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `parent` differs from the located one if the call became a root ("fork")."""

    parent: Node | None
    num_parent_messages: int
    link: bytes
    key_link: bytes
    request_hash: bytes
    new_prompt: NewPrompt
    prompt_ids: bytes
    max_new_tokens: int
    reading: ReadingRules
    forked: bool

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) // 4


class Planner:
    """One per model. Nothing that its methods read ever changes, so they may run in any thread; `locate` writes to the tree."""

    def __init__(self, tokenizer: ChatTokenizer, prompts: PromptBuilder, *, options: DataProxyOptions) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._options = options
        self._end_ids = frozenset((*tokenizer.eos_ids, prompts.turn_end_id))

    @property
    def end_ids(self) -> frozenset[int]:
        return self._end_ids

    def locate(self, tree: ConversationTree, request: session_pb2.GenerateRequest) -> Located:
        if not request.messages:
            raise InvalidRequest("messages is empty; give at least one message", param="messages")
        position = tree.locate(request.messages, tools=request.tools, template_kwargs=request.chat_template_kwargs)
        return Located(position=position, request_hash=request_hash(position.link, _parameters(request)))

    def plan(self, located: Located, request: session_pb2.GenerateRequest) -> Plan:
        """
        Raises:
            InvalidRequest: the template does not take the messages, or a bound is wrong.
            ContextLengthExceeded: no room for an answer.
        """
        position = located.position
        parent, covered = position.parent, position.num_parent_messages
        prompt = self._child(parent, position, request) if parent is not None else None
        forked = parent is not None and prompt is None
        if prompt is None:
            parent, covered = None, 0
            prompt = self._root(position, request)
        prompt_ids = (parent.token_ids() if parent else b"") + prompt.ids
        return Plan(
            parent=parent,
            num_parent_messages=covered,
            link=position.link,
            key_link=position.key_link,
            request_hash=located.request_hash,
            new_prompt=prompt,
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens(
                len(prompt_ids) // 4,
                max_new=request.max_new_tokens if request.HasField("max_new_tokens") else None,
                max_total=request.max_total_tokens if request.HasField("max_total_tokens") else None,
                engine_max_total=self._options.max_total_tokens,
            ),
            reading=self._reading(request, opened_thinking=prompt.opened_thinking),
            forked=forked,
        )

    def reading_of_record(self, record: session_pb2.InteractionRecord, request: session_pb2.GenerateRequest) -> ReadingRules:
        """How to read a recorded output again, for the same request."""
        return self._reading(request, opened_thinking=self._prompts.opened_thinking(record.new_prompt_ids))

    def _reading(self, request: session_pb2.GenerateRequest, *, opened_thinking: bool) -> ReadingRules:
        return ReadingRules(
            vocabulary=self._tokenizer.vocabulary,
            end_ids=self._end_ids.union(request.sampling.stop_token_ids),
            stop=tuple(request.sampling.stop),
            opened_thinking=opened_thinking,
            parse_calls=self._options.parse_tool_calls and bool(request.tools) and request.tool_choice != _NO_TOOL_CALLS,
            parse_reasoning=self._options.parse_reasoning,
            with_logprobs=request.logprobs,
        )

    def _root(self, position: Position, request: session_pb2.GenerateRequest) -> NewPrompt:
        messages = _parsed(position, request, first=0)
        return self._prompts.root(
            messages, tools=parse_tools(request.tools), template_kwargs=parse_template_kwargs(request.chat_template_kwargs)
        )

    def _child(self, parent: Node, position: Position, request: session_pb2.GenerateRequest) -> NewPrompt | None:
        needs_all, covered = self._prompts.needs_history, position.num_parent_messages
        first = 0 if needs_all else covered
        messages = _parsed(position, request, first=first)
        return self._prompts.child(
            parent.record.output_ids,
            messages[covered - first :],
            history=messages[:covered] if needs_all else None,
            tools=parse_tools(request.tools) if self._prompts.needs_tools else None,
            template_kwargs=parse_template_kwargs(request.chat_template_kwargs),
        )


def _parsed(position: Position, request: session_pb2.GenerateRequest, *, first: int) -> list[Message]:
    return [position.parsed.get(i) or parse_message(raw, i) for i, raw in enumerate(request.messages[first:], start=first)]


def _parameters(request: session_pb2.GenerateRequest) -> bytes:
    """All that shapes an answer besides the history, which its link stands for."""
    return session_pb2.GenerateRequest(
        tool_choice=request.tool_choice,
        sampling=request.sampling,
        max_new_tokens=request.max_new_tokens if request.HasField("max_new_tokens") else None,
        max_total_tokens=request.max_total_tokens if request.HasField("max_total_tokens") else None,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        store=request.store,
    ).SerializeToString(deterministic=True)
