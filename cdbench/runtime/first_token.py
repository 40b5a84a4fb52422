"""``first_token: select``: the rule picks, after the fact, the loop a first token is read from.

The prompt runs all its loops, so this saves no compute; it is what Ouro's published code does. The
rule sees the prompt's last position loop by loop, as it would see a later token's, and the token is
read from the first loop at which it asks for an exit. The prompt's own keys stay as they are: where
the coda has layers, the last position's coda row is written again from loop R's state at the end.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from cdbench.runtime.core import BoolArray, FloatArray, IntArray
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.prompt_launches import PrefillChunk
from cdbench.runtime.readback import Chosen
from cdbench.runtime.rule_memory import RULE_LIST
from cdbench.runtime.runner import Runner


class Selection:
    """The last positions of one pack of prompts: what each loop left there, and what was asked."""

    def __init__(self, runner: Runner, residents: IntArray, max_loops: int) -> None:
        self.runner, self.residents, self.max_loops = runner, residents, max_loops
        self._line = np.full(runner.residents.capacity, -1, np.int64)
        self._line[residents] = np.arange(residents.size)
        shape, state = (max_loops, residents.size), runner.carried.state
        self._states = state.new_empty((*shape, state.shape[1]))
        self._readouts = runner.carried.empty_readout(max_loops * residents.size).view(*shape, -1)
        runner.residents.begin_first_tokens(residents)

    def observe(self, chunk: PrefillChunk, loop: int, met: BoolArray) -> None:
        """Keep what a loop left at the last positions that are in this chunk."""
        if not chunk.residents.size:
            return
        self._record(chunk.residents, loop, met)
        lines = self.runner.tensor(self._line[chunk.residents])
        self._states[loop - 1].index_copy_(0, lines, chunk.last_rows())
        if chunk.readout is not None:
            self._readouts[loop - 1].index_copy_(0, lines, chunk.last_rows(chunk.readout))

    def first_tokens(self) -> tuple[Chosen, IntArray]:
        """What was chosen, and the loop each token was read from."""
        res = self.runner.residents
        tokens, logprobs = np.zeros_like(self.residents), np.zeros(self.residents.size)
        needs_logits = np.array(
            [RULE_LIST[int(i)].needs is Needs.LOGITS for i in res.rule[self.residents]], np.bool_
        )
        undecided = needs_logits.copy()
        last_read = np.zeros_like(self.residents)
        for loop in range(1, self.max_loops + 1):
            picked_now = ~needs_logits & (self._picked() == loop)
            reading = np.flatnonzero(undecided | picked_now)
            if not reading.size:
                continue
            rows = self.residents[reading]
            tokens[reading], logprobs[reading], met = self._read(reading, loop)
            last_read[reading] = loop
            self._record(rows, loop, met & undecided[reading])
            # A floor may have put off what a rule asked for.
            undecided &= res.requested[self.residents] > loop
        self._restore_coda_rows(np.flatnonzero(last_read < self.max_loops))
        # What was read last need not be what counts.
        self.runner.put_tokens(self.residents, tokens)
        return Chosen.known(tokens, logprobs), self._picked()

    def _record(self, residents: IntArray, loop: int, met: BoolArray) -> None:
        res = self.runner.residents
        res.loop[residents] = loop
        res.decide(residents, met)

    def _picked(self) -> IntArray:
        return np.minimum(self.runner.residents.requested[self.residents], self.max_loops)

    def _read(self, lines: IntArray, loop: int) -> tuple[IntArray, FloatArray, BoolArray]:
        rows, at = self.residents[lines], self.runner.tensor(lines)
        self._place(rows, self._states[loop - 1][at], self._readouts[loop - 1][at])
        chosen = self.runner.coda(rows, prefill=True)
        return *chosen.wait(), chosen.met()

    def _place(self, residents: IntArray, state: Tensor, readout: Tensor) -> None:
        self.runner.carried.keep(self.runner.tensor(residents), state, readout)

    def _restore_coda_rows(self, lines: IntArray) -> None:
        if self.runner.model.dims.coda_layers and lines.size:
            self._read(lines, self.max_loops)
