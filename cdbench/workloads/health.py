"""What in a workload would flatter or fake a result: repeats, echoes, loops, capped outputs.

Everything is judged on token ids. Shares are over requests; below the limits given here nothing is
said, because any real text has a few of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Ids = Sequence[int]

REPEATED_SHARE = 0.01
ECHO_SHARE = 0.20
LOOP_SHARE = 0.10
CAP_SHARE = 0.10

ECHO_NGRAM = 8
"""Tokens in a row that count as taken from the prompt."""
ECHO_COVER = 0.5
SHORTEST_JUDGED = 16
"""Shorter outputs are not judged: a short answer may well repeat what was asked."""
LONGEST_PERIOD = 64
LOOP_COVER = 0.5
MIN_COLLISIONS = 20.0
"""Equal pairs that ids drawn at random must be expected to have, before text is told from them."""


@dataclass(frozen=True)
class Continuation:
    """A prompt and what followed it. ``capped``: it ran into its length limit."""

    prompt: Ids
    output: Ids
    capped: bool = False


def warnings(continuations: Sequence[Continuation]) -> Iterator[str]:
    """One sentence for each thing that is wrong with a workload's text."""
    total = len(continuations)
    if not total:
        return
    repeated = total - len({tuple(c.prompt) for c in continuations})
    if repeated > REPEATED_SHARE * total:
        yield (
            f"prompts: {_share(repeated, total)} repeat an earlier one: prefixes and exits "
            "are more alike than in real traffic"
        )
    judged = [c for c in continuations if len(c.output) >= SHORTEST_JUDGED]
    echoing = sum(echoes(c.prompt, c.output) for c in judged)
    if echoing > ECHO_SHARE * total:
        yield f"outputs: {_share(echoing, total)} repeat their prompt: copied tokens exit early"
    looping = sum(loops(c.output) for c in judged)
    if looping > LOOP_SHARE * total:
        yield (f"outputs: {_share(looping, total)} end in a loop: repeated tokens exit early")
    capped = sum(c.capped for c in continuations)
    if capped > CAP_SHARE * total:
        yield (
            f"outputs: {_share(capped, total)} hit their length limit: answers are cut off; "
            "raise workload.max_new_tokens"
        )


def echoes(prompt: Ids, output: Ids) -> bool:
    """Whether half of an output's runs of eight tokens stand in its prompt."""
    known = set(_ngrams(prompt))
    runs = _ngrams(output)
    return bool(runs) and sum(run in known for run in runs) >= ECHO_COVER * len(runs)


def loops(output: Ids) -> bool:
    """Whether the last half of an output, or more, repeats a few tokens at least three times."""
    for period in range(1, min(LONGEST_PERIOD, len(output) // 3) + 1):
        run = period
        while run < len(output) and output[-run - 1] == output[-run - 1 + period]:
            run += 1
        if run >= 3 * period and run >= max(SHORTEST_JUDGED, LOOP_COVER * len(output)):
            return True
    return False


def looks_random(prompts: Sequence[Ids], vocab_size: int) -> bool:
    """Whether ids look drawn evenly from the vocabulary, as no text's do.

    Two tokens of a text are equal far more often than one in ``vocab_size``: a few words make up
    most of it. False where there are too few tokens to tell.
    """
    counts = Counter(token for prompt in prompts for token in prompt)
    tokens = counts.total()
    expected = tokens * (tokens - 1) / 2 / vocab_size
    collisions = sum(n * (n - 1) // 2 for n in counts.values())
    return expected >= MIN_COLLISIONS and collisions < 2 * expected


def _ngrams(ids: Ids) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + ECHO_NGRAM]) for i in range(len(ids) - ECHO_NGRAM + 1)]


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.0%})"
