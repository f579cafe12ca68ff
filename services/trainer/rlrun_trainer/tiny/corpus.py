"""Made text for the tokenizer: English sentences, JSON, code, lists and invented words, from a seed. Nothing is downloaded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from rlrun_trainer.tiny.task import LOOKUP_TOOL, answer, draw_key, question, tool_call, tool_result


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "agent user model tool server session policy worker reward token answer question key value name list file folder number word line "
    "message function argument result error time day year hour minute city house street river country water food table book page letter "
    "friend family child person people world system machine computer network request response weather price order product customer "
    "picture music language story school teacher student problem example reason idea part place point group company market"
)
_VERBS = _words(
    "ask answer call read write find give take make look search open close start stop run train learn change update return send receive "
    "show tell know think want need use help work move play build check count add remove copy sort sell buy wait follow"
)
_QUALITIES = _words(
    "good new first last long great little other old right big high small large next early young important public able short clear simple "
    "open full free true false ready quick slow warm cold bright dark strong weak empty heavy light"
)
_SMALL = _words(
    "the a an of to in and for on with as by at from that this it is was are be have has not or but if then when where which who how what "
    "why because while after before between under over into about please can could will would should may must do does did"
)
_SYLLABLES = _words(
    "ba be bi con cor da de di en er est fa fi ing ion is ka ki la li lo ma "
    "me mi na ne no on or pa pe pro ra re ri sa se sta ta te ti tra un ver vi"
)


def corpus(seed: int, *, lines: int = 8000) -> Iterator[str]:
    """Yields `lines` lines; the same lines for the same seed."""
    rng = random.Random(seed)
    makers: tuple[Callable[[random.Random], str], ...] = (_sentence, _sentence, _json, _code, _invented, _episode)
    for _ in range(lines):
        yield rng.choice(makers)(rng)


def _sentence(rng: random.Random) -> str:
    words = []
    for _ in range(rng.randint(4, 12)):
        kind = rng.random()
        if kind < 0.45:
            words.append(rng.choice(_SMALL))
        elif kind < 0.7:
            words.append(rng.choice(_NOUNS) + rng.choice(("", "", "s")))
        elif kind < 0.88:
            words.append(rng.choice(_VERBS) + rng.choice(("", "", "ed", "ing", "s")))
        else:
            words.append(rng.choice(_QUALITIES))
    return words[0].capitalize() + " " + " ".join(words[1:]) + rng.choice((".", ".", "?", "!", ", ", ":\n"))


def _json(rng: random.Random) -> str:
    fields = {
        rng.choice(_NOUNS): rng.choice((rng.choice(_NOUNS), rng.randint(0, 999), True, None, [rng.choice(_QUALITIES)])) for _ in range(3)
    }
    return json.dumps({"type": rng.choice(("object", "string", "function", "array", "integer")), rng.choice(_NOUNS): fields})


def _code(rng: random.Random) -> str:
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
    return f"def {verb}_{noun}({noun}: str) -> int:\n    return self.{noun}s[{rng.randint(0, 99)}] + len({rng.choice(_NOUNS)})\n"


def _invented(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(rng.randint(3, 8)))


def _episode(rng: random.Random) -> str:
    key = draw_key(rng)
    messages = (question(key), tool_call(key), tool_result(str(rng.randint(0, 9))), answer(str(rng.randint(0, 9))))
    call = json.dumps({"name": "lookup", "arguments": {"key": key}})
    roles = "\n".join(f"{message['role']}\n{message['content'] or call}" for message in messages)
    return f"system\n# Tools\n<tools>\n{json.dumps(LOOKUP_TOOL)}\n</tools>\n{roles}\n"
