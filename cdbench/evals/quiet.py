"""Running lm-eval without its noise: no progress bars, no logs, global random numbers as before."""

from __future__ import annotations

import contextlib
import io
import logging
import random
from collections.abc import Iterator

import numpy as np

LOGGERS = ("lm_eval", "datasets", "evaluate", "huggingface_hub")
RANDOM_SEED = 0
NUMPY_SEED = 1234
"""lm-eval's own seeds: some tasks shuffle their choices with the global generators."""


class Notes(logging.Handler):
    """Keeps warnings instead of printing them; ``texts`` has each once, in order."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._seen[" ".join(record.getMessage().split())] = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._seen)


@contextlib.contextmanager
def quiet() -> Iterator[Notes]:
    """Collect what lm-eval and its libraries warn of, and keep its progress bars off stderr."""
    notes = Notes()
    with contextlib.ExitStack() as stack:
        for name in LOGGERS:
            stack.enter_context(_redirected(logging.getLogger(name), notes))
        # The bars have no switch: they write to whatever stderr is when they are made.
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield notes


@contextlib.contextmanager
def _redirected(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Global random generators as lm-eval seeds them, and afterwards as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(RANDOM_SEED)
    np.random.seed(NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
