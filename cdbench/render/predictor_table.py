"""What a lookahead gate did in a run's timed modes: shown where there was one."""

from __future__ import annotations

from cdbench.render.formats import Kind
from cdbench.render.metric_table import known, metric_table
from cdbench.render.table import Table
from cdbench.schema import Result

FIGURES = (
    ("predictor_precision", Kind.PERCENT),
    ("predictor_recall", Kind.PERCENT),
    ("predictor_exact", Kind.PERCENT),
    ("predictor_depth_error", Kind.NUMBER),
    ("wasted_loops", Kind.COUNT),
    ("short_loops", Kind.COUNT),
)
WORDS = (
    "Precision: exits called that the rule asked for by then. Recall: of the rule's exits before "
    "the last loop, those called in time. Exact: later tokens at the rule's depth, 2 at least "
    "without a pre-loop gate. A call that came too early counts as short by one loop: by how many "
    "it was, the run cannot tell."
)


def predictor_table(result: Result) -> Table:
    """Empty without a gate."""
    gates = known(result, FIGURES[:4])
    if not gates:
        return Table((), ())
    title = "lookahead gate, over the recorded run's tokens"
    return metric_table(result, (*gates, *FIGURES[4:]), title, (WORDS,), all_stay=False)
