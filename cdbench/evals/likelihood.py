"""lm-eval's likelihoods: continuations and whole texts, scored as they would be generated."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from cdbench.evals.answers import NO_SCORE, Answer, Asked, piece_of
from cdbench.evals.point import OperatingPoint
from cdbench.runtime.scoring.continuation import Continuation, Scored

Pair = tuple[list[int], list[int]]
"""Tokens that stand before, and tokens to score."""


def score_pairs(
    point: OperatingPoint, asked: Sequence[Asked], pairs: Sequence[Pair]
) -> list[Answer]:
    """Answers with (logprob in nats, greedy), in order.

    A context that is too long loses tokens on the left. What cannot be scored is minus infinity,
    with ``error`` set.
    """
    fitted = [_fitted(point, *both) for both in zip(asked, pairs, strict=True)]
    scores = _scores(point, [(what, [pair]) for what, pair in fitted])
    answers = []
    for (what, (_, tokens)), found in zip(fitted, scores, strict=True):
        error = _error(found)
        response = (NO_SCORE, False)
        if what.error is None and error is None:
            response = (found[0].logprob, found[0].all_greedy)
        pieces = tuple(piece_of(tokens, one) for one in found)
        answers.append(what.answer("scored", response, pieces=pieces, error=error))
    return answers


def score_texts(
    point: OperatingPoint, asked: Sequence[Asked], texts: Sequence[list[int]]
) -> list[Answer]:
    """Answers with the logprob of each whole text, in nats, in order.

    A text longer than the model is scored in windows as lm-eval cuts them. Of an empty one there is
    no score: minus infinity, with ``error`` set.
    """
    windowed = [(what, _windows(point, tokens)) for what, tokens in zip(asked, texts, strict=True)]
    scores = _scores(point, windowed)
    answers = []
    for (what, windows), found in zip(windowed, scores, strict=True):
        error = _error(found) if windows else "the text is empty: nothing to score"
        whole = sum(one.logprob for one in found) if error is None else NO_SCORE
        pieces = tuple(piece_of(w[1], one) for w, one in zip(windows, found, strict=True))
        answers.append(what.answer("rolled", whole, pieces=pieces, error=error))
    return answers


def _fitted(point: OperatingPoint, what: Asked, pair: Pair) -> tuple[Asked, Pair]:
    """As much of the context, from its end, as there are positions for."""
    context, tokens = pair
    # The last token is read but never run.
    room = point.max_length + 1 - len(tokens)
    if not tokens:
        return what.failed("the continuation is empty: nothing to score"), pair
    if room < 1:
        longer = f"a continuation of {len(tokens)} tokens is longer than the model's"
        return what.failed(f"{longer} {point.max_length} positions"), pair
    kept = context[-room:]
    return what.with_prompt(len(kept), len(context) - len(kept), what.empty_prompt), (kept, tokens)


def pair_positions(point: OperatingPoint, pair: Pair) -> int:
    """Positions that a pair comes to occupy as it is scored; 0 where it cannot be."""
    what, (context, tokens) = _fitted(point, Asked(None, None, 0, repeat=0), pair)
    return len(context) + len(tokens) - 1 if what.error is None else 0


def text_positions(point: OperatingPoint, tokens: list[int]) -> int:
    """Those of the longest window of a whole text; 0 of an empty one."""
    windows = _windows(point, tokens)
    return max((len(context) + len(scored) - 1 for context, scored in windows), default=0)


def _windows(point: OperatingPoint, tokens: list[int]) -> list[Pair]:
    if not tokens:
        return []
    windows = get_rolling_token_windows(
        token_list=tokens,
        prefix_token=point.codec.prefix_id,
        max_seq_len=point.max_length,
        context_len=1,
    )
    return [make_disjoint_window(window) for window in windows]


def _scores(
    point: OperatingPoint, wanted: Sequence[tuple[Asked, list[Pair]]]
) -> list[list[Scored]]:
    """The scores of each one's pairs; none of those that have an error already."""
    jobs = [
        [
            Continuation(f"{what.id}/{n}", context, tokens, point.policy, what.task, what.doc_id)
            for n, (context, tokens) in enumerate(pairs if what.error is None else ())
        ]
        for what, pairs in wanted
    ]
    scores = iter(point.score([continuation for job in jobs for continuation in job]))
    return [[next(scores) for _ in job] for job in jobs]


def _error(scores: Sequence[Scored]) -> str | None:
    return next((one.error for one in scores if one.error is not None), None)
