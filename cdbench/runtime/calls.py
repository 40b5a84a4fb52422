"""What a gate's call means for the token in flight: the loop it leaves after, and who is told."""

from __future__ import annotations

import numpy as np

from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.residents import UNASKED, Residents


def look_before(res: Residents, residents: IntArray, calls: BoolArray) -> None:
    """Take the pre-loop gates' calls for loop 1, of those that were asked."""
    called = residents[calls & res.foresight.asked_before(residents)]
    _call(res, called, np.ones_like(called))


def look_ahead(res: Residents, residents: IntArray, loops: IntArray, calls: BoolArray) -> None:
    """Take the gates' calls for the loop after ``loops``, once the tests after these are recorded.

    A call counts where a gate was asked, the token goes on to that loop, none was called before,
    and the rule has not asked by itself, at a depth that the gate could have called. That loop may
    have been launched meanwhile.
    """
    foresight = res.foresight
    asked = res.requested[residents] <= loops
    foresight.settle(residents, loops, asked)
    late = asked & (loops >= foresight.earliest[residents])
    is_first = (res.exit_at[residents] > loops) & (foresight.called[residents] == 0)
    counts = calls & foresight.asked(residents, loops) & ~late & is_first
    _call(res, residents[counts], loops[counts] + 1)


def _call(res: Residents, residents: IntArray, depths: IntArray) -> None:
    """Call an exit after loop ``depths``, where that reaches the floor."""
    reaches = depths >= res.min_loops[residents]
    called, depths = residents[reaches], depths[reaches]
    res.foresight.called[called] = depths
    leaves = np.where(res.is_scripted[called], UNASKED, depths)
    res.exit_at[called] = np.minimum(res.exit_at[called], leaves)
