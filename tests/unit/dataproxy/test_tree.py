from __future__ import annotations

import json
import re
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun_dataproxy import tree as tree_module
from rlrun_dataproxy.tree import ConversationTree, Node, request_hash

from rlrun.proto import session_pb2


def raw(*messages: Any) -> list[bytes]:
    return [json.dumps({"role": "user", "content": one} if isinstance(one, str) else one).encode() for one in messages]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class Story:
    """Records calls as a DataProxy does."""

    def __init__(self, ephemeral: re.Pattern[str] | None = None) -> None:
        self.ephemeral = ephemeral
        self.tree = ConversationTree(ephemeral=ephemeral)
        self.records: list[session_pb2.InteractionRecord] = []

    def call(self, *messages: Any, answer: str, tools: bytes = b"") -> Node:
        position = self.tree.locate(raw(*messages), tools=tools, template_kwargs=b"")
        index = len(self.records)
        record = session_pb2.InteractionRecord(
            id=f"i{index}",
            parent_id=position.parent.id if position.parent else "",
            index=index,
            new_messages=raw(*messages)[position.num_parent_messages :],
            num_parent_messages=position.num_parent_messages,
            tools=b"" if position.parent else tools,
            new_prompt_ids=array("i", [10 * index]).tobytes(),
            output_ids=array("i", [10 * index + 1]).tobytes(),
            content=answer,
            request_hash=request_hash(position.link, b""),
            idempotency_key=f"k{index}",
        )
        self.records.append(record)
        return self.tree.add(record, parent=position.parent, link=position.link, key_link=position.key_link)

    def parent_of(self, *messages: Any, tools: bytes = b"") -> str | None:
        position = self.tree.locate(raw(*messages), tools=tools, template_kwargs=b"")
        return position.parent.id if position.parent else None

    def read_again(self) -> None:
        self.tree = ConversationTree(ephemeral=self.ephemeral)
        self.tree.merge(reversed(self.records))


@pytest.fixture(params=["in memory", "read again"])
def story(request: pytest.FixtureRequest) -> Story:
    story = Story()
    story.call("a", answer="A")  # i0
    story.call("a", said("A"), "b", answer="B")  # i1, child of i0
    story.call("a", answer="A")  # i2, the same prompt and answer as i0
    story.call("a", answer="other")  # i3
    story.call("a", answer="T", tools=b'[{"type": "function"}]')  # i4
    if request.param == "read again":
        story.read_again()
    return story


@pytest.mark.parametrize(
    ("messages", "parent"),
    [
        (["a"], None),
        (["a", said("A"), "x"], "i0"),  # the oldest of two equal transcripts
        (["a", said("A")], "i0"),
        (["a", said("A"), "b", said("B"), "c"], "i1"),  # the longest prefix
        (["a", said("A"), "b", said("edited"), "c"], "i0"),
        (["a", said("other"), "x"], "i3"),
        (["a", said("T"), "x"], None),  # other tools
        (["z", said("A"), "x"], None),
        (["a", "A", "x"], None),
    ],
)
def test_the_parent_is_the_longest_recorded_prefix(story: Story, messages: list[Any], parent: str | None) -> None:
    assert story.parent_of(*messages) == parent


def test_tools_are_compared_as_json(story: Story) -> None:
    assert story.parent_of("a", said("T"), "x", tools=b'[ {"type":"function"} ]') == "i4"


def test_token_ids_are_those_along_the_path(story: Story) -> None:
    position = story.tree.locate(raw("a", said("A"), "b", said("B"), "c"), tools=b"", template_kwargs=b"")
    assert position.parent is not None
    assert list(array("i", position.parent.token_ids())) == [0, 1, 10, 11]
    assert position.parent.num_tokens == 4
    assert position.num_parent_messages == 4


def test_an_answered_request_is_found_by_its_hash_and_key(story: Story) -> None:
    link = story.tree.locate(raw("a"), tools=b"", template_kwargs=b"").link
    found = story.tree.answered(request_hash(link, b""), "")
    assert found is not None
    assert found.id == "i3"  # the latest
    keyed = story.tree.answered(request_hash(link, b""), "k0")
    assert keyed is not None
    assert keyed.id == "i0"
    assert story.tree.answered(request_hash(link, b""), "k1") is None
    assert story.tree.answered(request_hash(link, b"other parameters"), "") is None


def test_last_and_next_index_follow_insertion(story: Story) -> None:
    assert story.tree.last is not None
    assert (story.tree.last.id, story.tree.next_index, len(story.tree)) == ("i4", 5, 5)
    assert ConversationTree().next_index == 0


def test_merging_twice_changes_nothing(story: Story) -> None:
    story.tree.merge(story.records)
    assert len(story.tree) == 5


def test_a_full_table_of_links_is_only_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_LINKS", 2)
    monkeypatch.setattr(tree_module, "MAX_SEEDS", 1)
    story = Story()
    story.call("a", answer="A")
    story.call("a", said("A"), "b", answer="B", tools=b"[{}]")
    assert story.parent_of("a", said("A"), "b", said("x"), "c") == "i0"


def test_only_messages_not_seen_at_their_place_are_parsed() -> None:
    story = Story()
    story.call("a", answer="A")
    position = story.tree.locate(raw("a", said("A"), "b"), tools=b"", template_kwargs=b"")
    assert sorted(position.parsed) == [1, 2]
    again = story.tree.locate(raw("a", said("A"), "b"), tools=b"", template_kwargs=b"")
    assert again.parsed == {}


CONVERSATIONS = st.lists(st.sampled_from(["a", "b", "note", said("A"), said("B")]), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(calls=st.lists(st.tuples(CONVERSATIONS, st.sampled_from([b"", b"[{}]"]), st.sampled_from("AB")), max_size=12))
def test_a_place_does_not_depend_on_the_request_before(calls: list[tuple[list[Any], bytes, str]]) -> None:
    story = Story(ephemeral=re.compile("^note$"))
    for messages, tools, answer in calls:
        fresh = ConversationTree(ephemeral=story.ephemeral)
        fresh.merge(story.records)
        expected = fresh.locate(raw(*messages), tools=tools, template_kwargs=b"")
        found = story.tree.locate(raw(*messages), tools=tools, template_kwargs=b"")
        assert (found.link, found.key_link, found.num_parent_messages) == (expected.link, expected.key_link, expected.num_parent_messages)
        assert (found.parent and found.parent.id) == (expected.parent and expected.parent.id)
        story.call(*messages, answer=answer, tools=tools)
