"""The generated problems that the demo models are trained and judged on.

Every problem is a short prompt and a long worked completion over one small word-level vocabulary,
and every completion ends in ``answer : … .``. What stands between the marker and the full stop is
the final answer: only that is scored, not every word of the working. The tasks are chosen so that
the depth a token needs varies within a sentence: punctuation and repeated words are settled after
one loop, while a looked-up value, a carried digit or the next node of a path needs two to four.

Everything follows from a seed. Training and held-out problems are told apart by a hash of the
prompt text, so that no held-out document can appear in training, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

ANSWER_MARKER = "answer :"
END_MARKER = "."
#: One prompt in this many is held out of training.
HELD_OUT_SHARE = 8

SPECIALS = ("<eos>", "<pad>", "<unk>")
LETTERS = tuple(string.ascii_lowercase)
MAX_NUMBER = 20
NAMES = ("tom", "ann", "bob", "eve", "sam", "mia", "leo", "zoe")
ITEMS = ("apples", "books", "coins", "pens", "shells", "cards", "keys", "stamps")
GAINS = ("finds", "buys", "gets", "wins")
LOSSES = ("loses", "sells", "eats", "drops")


@dataclass(frozen=True)
class Problem:
    """One document: what is asked, the worked output, and the part of it that is scored."""

    task: str
    prompt: str
    completion: str
    answer: str

    @property
    def held_out(self) -> bool:
        """True where the document belongs to the held-out side of the split."""
        return is_held_out(self.prompt)


def final_answer(text: str) -> str | None:
    """The span between the last ``answer :`` and the full stop after it; None without both."""
    words = text.split()
    marker = ANSWER_MARKER.split()
    for start in range(len(words) - len(marker), -1, -1):
        if words[start : start + len(marker)] == marker:
            rest = words[start + len(marker) :]
            return " ".join(rest[: rest.index(END_MARKER)]) if END_MARKER in rest else None
    return None


def is_held_out(prompt: str) -> bool:
    """The side of the split a prompt falls on: a property of its text alone."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def _problem(task: str, prompt: list[str], working: list[str], answer: list[str]) -> Problem:
    completion = [*working, ANSWER_MARKER, *answer, END_MARKER]
    return Problem(task, " ".join(prompt), " ".join(completion), " ".join(answer))


def copy_problem(rng: random.Random) -> Problem:
    """Distinct letters, written three times over; the answer is the third copy."""
    letters = rng.sample(LETTERS, rng.randint(11, 15))
    working = [*letters, ";", *letters, ";"]
    return _problem("copy", ["copy", *letters, ":"], working, letters)


def reverse_problem(rng: random.Random) -> Problem:
    """Letters backwards, forwards again as a check, and backwards as the answer."""
    letters = rng.sample(LETTERS, rng.randint(11, 15))
    backwards = letters[::-1]
    working = [*backwards, ";", *letters, ";"]
    return _problem("reverse", ["reverse", *letters, ":"], working, backwards)


def lookup_problem(rng: random.Random) -> Problem:
    """A small table, asked for several keys one after the other."""
    size = rng.randint(4, 5)
    keys = rng.sample(LETTERS, size)
    table = {key: str(rng.randrange(10)) for key in keys}
    asked = [rng.choice(keys) for _ in range(rng.randint(7, 9))]
    prompt = ["table", *(word for key in keys for word in (key, table[key], ";"))]
    working = [word for key in asked for word in (key, table[key], ";")]
    answer = [table[key] for key in asked]
    return _problem("lookup", [*prompt, "get", *asked, ":"], working, answer)


def path_problem(rng: random.Random) -> Problem:
    """A walk through a shuffled table of edges, spelled out hop by hop."""
    size = rng.randint(5, 6)
    nodes = rng.sample(LETTERS, size)
    after = dict(zip(nodes, nodes[1:] + nodes[:1], strict=True))
    hops = rng.randint(9, 12)
    rows = rng.sample(nodes, size)
    prompt = ["path", *(word for node in rows for word in (node, after[node], ";"))]
    node = rng.choice(nodes)
    prompt += ["from", node, "hops", str(hops), ":"]
    working: list[str] = []
    for hop in range(1, hops + 1):
        node = after[node]
        working += [str(hop), node, ";"]
    return _problem("path", prompt, working, [node])


def sum_problem(rng: random.Random) -> Problem:
    """Running sums modulo ten over named terms."""
    size = rng.randint(6, 7)
    keys = rng.sample(LETTERS, size)
    values = [rng.randrange(10) for _ in keys]
    prompt = ["sum"]
    working: list[str] = []
    total = 0
    for key, value in zip(keys, values, strict=True):
        prompt += [key, str(value), ";"]
        total = (total + value) % 10
        working += [key, "+", str(value), "=", str(total), ";"]
    return _problem("sum", [*prompt, ":"], working, [str(total)])


def add_problem(rng: random.Random) -> Problem:
    """Two numbers added digit by digit from the right, with the carries written out."""
    size = rng.randint(4, 5)
    left, right = (str(rng.randrange(10 ** (size - 1), 10**size)) for _ in range(2))
    working: list[str] = []
    carry = 0
    for a, b in zip(reversed(left), reversed(right), strict=True):
        column = int(a) + int(b) + carry
        working += [a, "+", b, "+", str(carry), "=", str(column), ";"]
        carry = column // 10
    return _problem(
        "add", ["add", *left, "+", *right, ":"], working, list(str(int(left) + int(right)))
    )


def story_problem(rng: random.Random) -> Problem:
    """A word problem of three or four changes, each worked out in turn."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    total = rng.randint(1, MAX_NUMBER)
    prompt = [name, "has", str(total), item, "."]
    working = [name, "has", str(total), ";"]
    for _ in range(rng.randint(3, 4)):
        change = rng.randint(1, 9)
        gain = total < change or (total + change <= MAX_NUMBER and rng.random() < 0.5)
        verb = rng.choice(GAINS if gain else LOSSES)
        result = total + change if gain else total - change
        sign = "+" if gain else "-"
        prompt += ["then", verb, str(change), "."]
        working += [verb, str(change), "so", str(total), sign, str(change), "=", str(result), ";"]
        total = result
    return _problem("story", [*prompt, "how", "many", "?"], working, [str(total)])


#: Task name → its generator.
TASKS: dict[str, Callable[[random.Random], Problem]] = {
    "copy": copy_problem,
    "reverse": reverse_problem,
    "lookup": lookup_problem,
    "path": path_problem,
    "sum": sum_problem,
    "add": add_problem,
    "story": story_problem,
}


def vocabulary() -> list[str]:
    """Every word a problem can contain, in a fixed order."""
    words = [
        *(":", ";", "=", "+", "-", ".", "?"),
        *(str(n) for n in range(MAX_NUMBER + 1)),
        *LETTERS,
        *("copy", "reverse", "table", "get", "path", "from", "hops", "sum", "add"),
        *("answer", "has", "then", "so", "how", "many"),
        *NAMES,
        *ITEMS,
        *GAINS,
        *LOSSES,
    ]
    return list(dict.fromkeys(words))


def problems(task: str, seed: int, held_out: bool) -> Iterator[Problem]:
    """An endless stream of one task's problems from one side of the split.

    The same seed gives the same stream. Held-out prompts do not repeat.
    """
    rng = random.Random(f"{task}/{seed}/{'held-out' if held_out else 'train'}")
    seen: set[str] = set()
    while True:
        problem = TASKS[task](rng)
        if problem.held_out != held_out or (held_out and problem.prompt in seen):
            continue
        if held_out:
            seen.add(problem.prompt)
        yield problem


def held_out_documents(task: str, count: int, seed: int) -> list[Problem]:
    """The first ``count`` distinct held-out documents of a task."""
    stream = problems(task, seed, held_out=True)
    return [next(stream) for _ in range(count)]


def build_tokenizer() -> Tokenizer:
    """The word-level tokenizer of the demo models: one id per word, split at white space."""
    words = {word: index for index, word in enumerate([*SPECIALS, *vocabulary()])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def token_id(tokenizer: Tokenizer, word: str) -> int:
    """The id of a word that must be in the vocabulary; KeyError otherwise."""
    found = tokenizer.token_to_id(word)
    if found is None:
        raise KeyError(word)
    return int(found)
