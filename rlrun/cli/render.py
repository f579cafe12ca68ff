"""JSON answers as tables and trees for people. Unknown fields are shown, absent ones are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

MAX_CELL_LENGTH = 72


def cell(value: object) -> str:
    """One value as text without control characters and markup."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.3f}".rstrip("0").rstrip(".")
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return escape(text if len(text) <= MAX_CELL_LENGTH else text[: MAX_CELL_LENGTH - 3] + "...")


def _moment(value: object) -> str:
    if not isinstance(value, int | float):
        return cell(value)
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def rows_table(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(cell(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_moment(row.get(column)) if column.endswith("_unix_seconds") else cell(row.get(column)) for column in columns))
    return table


def value_tree(value: Mapping[str, Any], label: str) -> Tree:
    tree = Tree(f"[bold]{cell(label)}[/]")
    _grow(tree, value)
    return tree


def _grow(tree: Tree, value: Mapping[str, Any]) -> None:
    for name, child in value.items():
        if isinstance(child, Mapping) and child:
            _grow(tree.add(f"[bold]{cell(name)}[/]"), child)
        elif isinstance(child, list) and child and all(isinstance(row, Mapping) for row in child):
            tree.add(f"[bold]{cell(name)}[/]").add(rows_table(child))
        elif isinstance(child, list):
            tree.add(f"{cell(name)}: {', '.join(map(cell, child)) or '-'}")
        else:
            tree.add(f"{cell(name)}: {cell(child)}")


def session_tree(answer: Mapping[str, Any]) -> Tree:
    """The conversation tree of GET /admin/sessions/{id}: per interaction its tokens, mask and versions.

    The mask is drawn as one run per part: `0 x prompt tokens | 1 x output tokens`, as the trainer will see them.
    """
    session: Mapping[str, Any] = answer.get("session") or {}
    facts = ", ".join(f"{cell(name)} {cell(value)}" for name, value in session.items() if name != "session_id" and value not in (None, ""))
    tree = Tree(f"[bold]{cell(session.get('session_id'))}[/]  {facts}")
    interactions: Sequence[Mapping[str, Any]] = sorted(answer.get("interactions") or [], key=lambda item: item.get("index", 0))
    known = {item.get("id") for item in interactions}
    children: dict[Any, list[Mapping[str, Any]]] = {}
    for item in interactions:
        parent = item.get("parent_id") or None
        children.setdefault(parent if parent in known and parent != item.get("id") else None, []).append(item)
    pending = [(tree, item) for item in reversed(children.get(None, []))]
    while pending:
        branch, item = pending.pop()
        node = branch.add(_interaction(item))
        pending += [(node, child) for child in reversed(children.get(item.get("id"), []))]
    if not interactions:
        tree.add("no interactions yet")
    return tree


def _interaction(item: Mapping[str, Any]) -> str:
    prompt, output = item.get("num_new_prompt_tokens", 0), item.get("num_output_tokens", 0)
    versions = ", ".join(f"v{cell(span.get('version'))} x {cell(span.get('num_tokens'))}" for span in item.get("versions") or [])
    reward = item.get("reward")
    lines = [
        f"[bold]#{cell(item.get('index'))}[/] {cell(item.get('id'))}  {cell(item.get('finish_reason'))}"
        + (f"  [green]reward {cell(reward)}[/]" if reward is not None else ""),
        f"tokens {cell(prompt)} new prompt + {cell(output)} output   mask [dim]0 x {cell(prompt)}[/] | [cyan]1 x {cell(output)}[/]"
        f"   versions {versions or '-'}",
    ]
    if item.get("content"):
        lines.append(f"[italic]{cell(item['content'])}[/]")
    return "\n".join(lines)
