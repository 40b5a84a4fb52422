"""A suite: tasks whose requests are built once, so that every mode answers the same questions.

lm-eval draws few-shot examples from a generator that moves on, and some tasks shuffle their choices
when their documents are read. Both happen here once; afterwards documents and requests are frozen.

    suite = load_suite(["demo_add", "demo_copy"], SuiteOptions(limit=50))
    print(suite.hash, [task.primary for task in suite.tasks])
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.metrics import mean
from lm_eval.utils import handle_non_serializable, hash_string

from cdbench.errors import UsageError
from cdbench.evals.examples import Prompts, check_examples, watched_examples
from cdbench.evals.fetching import reason
from cdbench.evals.generation import check_change, one_length, read_settings
from cdbench.evals.options import SuiteOptions, check_options, read_gen_kwargs, read_samples
from cdbench.evals.quiet import quiet, seeded
from cdbench.evals.resolve_tasks import LoadedTasks, resolve_tasks

PRIMARY = ("exact_match", "acc_norm", "acc")
"""A task's primary metric is the first of these that it has, else the first it lists."""

ChatTemplate = Callable[..., str]
"""Renders ``[{"role": …, "content": …}]`` with the keyword ``add_generation_prompt``."""


@dataclass(frozen=True)
class TaskInfo:
    """One task as it is run. ``metrics`` says whether higher is better (None: the task does not).

    ``primary`` is (metric, filter): by the rule of ``PRIMARY``, after the task's first filter;
    ``averaged`` says that it is a mean over documents.
    ``doc_ids`` are places in its documents, counted from 0.
    """

    name: str
    output_type: str
    metrics: dict[str, bool | None]
    filters: tuple[str, ...]
    primary: tuple[str, str]
    averaged: bool
    doc_ids: tuple[int, ...]
    num_fewshot: int
    version: str
    dataset: str
    generation: dict[str, Any] | None = None


@dataclass(frozen=True)
class Question:
    """One document as it is asked, with lm-eval's hashes: what paired comparisons join on."""

    task: str
    doc_id: int
    doc_hash: str
    prompt_hash: str

    @property
    def key(self) -> tuple[str, int]:
        """Task and document: the same in every mode."""
        return self.task, self.doc_id


@dataclass(frozen=True)
class Suite:
    """Frozen tasks. ``instances`` are lm-eval's requests, in its order, the same for every mode.

    ``hash`` is over all that a mode is given. ``groups`` lists the tasks of each group. ``notes``
    are what must be known of the questions, then lm-eval's warnings. ``frozen`` holds each task's
    lm-eval object and documents.
    """

    tasks: tuple[TaskInfo, ...]
    groups: dict[str, tuple[str, ...]]
    questions: tuple[Question, ...]
    instances: tuple[Any, ...]
    hash: str
    notes: tuple[str, ...]
    options: SuiteOptions
    loaded: LoadedTasks = field(repr=False)
    frozen: dict[str, FrozenTask] = field(repr=False)

    def task(self, name: str) -> TaskInfo:
        """A task by name; KeyError where it is not in the suite."""
        return next(task for task in self.tasks if task.name == name)


class FrozenTask:
    """An lm-eval task whose documents and requests no longer change."""

    def __init__(self, task: Any, doc_ids: Sequence[int], documents: Any) -> None:
        self.task = task
        self.documents = {doc_id: documents[doc_id] for doc_id in doc_ids}
        self.requests: list[Any] = []
        self.prompts = Prompts()
        self._scored = frozenset(self.documents)
        # Attributes of this one object: lm-eval calls these whenever it wants documents.
        task.doc_iterator = self._documents
        task.test_docs = task.validation_docs = lambda: documents

    def build(self, options: SuiteOptions, template: ChatTemplate | None) -> None:
        """Build the requests, and have lm-eval keep them from here on."""
        with watched_examples(self.task) as self.prompts:
            self.task.build_all_requests(
                system_instruction=options.system_instruction,
                apply_chat_template=template is not None,
                fewshot_as_multiturn=options.fewshot_as_multiturn,
                chat_template=template,
            )
        self.task.build_all_requests = lambda **_: None
        self.requests = list(self.task.instances)

    def ask(self, doc_ids: Collection[int], left_out: Collection[int] = ()) -> None:
        """Have lm-eval know of these documents alone; it scores all but those ``left_out``."""
        self.task._instances = [one for one in self.requests if one.doc_id in doc_ids]
        self._scored = frozenset(doc_ids) - frozenset(left_out)

    def _documents(self, **_: Any) -> Iterator[tuple[int, Any]]:
        return iter([pair for pair in self.documents.items() if pair[0] in self._scored])


def load_suite(
    names: Sequence[str],
    options: SuiteOptions | None = None,
    template: ChatTemplate | None = None,
) -> Suite:
    """Load tasks and build their requests. Names are lm-eval's, files, directories or our own.

    ``template`` renders conversations (``TextCodec.renderer``); it is used where the options ask
    for one. Raises UsageError, in one line, for whatever cannot be run as asked.
    """
    options = options or SuiteOptions()
    check_options(options)
    samples, change = read_samples(options.samples), read_gen_kwargs(options.gen_kwargs)
    if options.apply_chat_template and template is None:
        raise UsageError("evaluation.chat_template: the model has no chat template; leave it out")
    with quiet() as notes, seeded():
        loaded = resolve_tasks(names, notes)
        unknown = next((task for task in samples if task not in loaded.tasks), None)
        if unknown is not None:
            raise UsageError(f"samples: task {unknown!r} is not among the tasks; correct the name")
        _check_change(loaded, change)
        frozen = {}
        for name, task in loaded.tasks.items():
            _change(name, task, options, change)
            check_examples(name, task)
            frozen[name] = _freeze(name, task, options, samples.get(name))
        for name, one in frozen.items():
            _build(name, one, options, template if options.apply_chat_template else None)
    infos = tuple(_info(name, one) for name, one in frozen.items())
    instances = tuple(instance for one in frozen.values() for instance in one.requests)
    return Suite(
        tasks=infos,
        groups={n: tuple(t.task_name for t in g.get_all_tasks()) for n, g in loaded.groups.items()},
        questions=tuple(_questions(infos, frozen)),
        instances=instances,
        hash=_hash(instances),
        notes=(*_empty(instances), *_holding_themselves(frozen), *notes.texts),
        options=options,
        loaded=loaded,
        frozen=frozen,
    )


def _check_change(loaded: LoadedTasks, change: dict[str, Any]) -> None:
    """Raise UsageError where no task would heed the generation arguments."""
    kinds = {task.get_config("output_type") for task in loaded.tasks.values()}
    if change and "generate_until" not in kinds:
        raise UsageError("gen_kwargs: none of the tasks generates text; leave it out")


def _change(name: str, task: Any, options: SuiteOptions, change: dict[str, Any]) -> None:
    """What lm-eval's command line changes of a task, in the way it does."""
    if task.get_config("output_type") == "generate_until":
        where = f"task {name!r}"
        if change:
            own = task.get_config("generation_kwargs") or {}
            check_change(own, change, where)
            task.set_config(key="generation_kwargs", value=one_length(own, change), update=True)
        read_settings(task.get_config("generation_kwargs") or {}, where)
    # A task that fixes 0 examples is never given any.
    own = task.get_config("num_fewshot")
    if own is None or (own != 0 and options.num_fewshot is not None):
        task.set_config(key="num_fewshot", value=options.num_fewshot or 0)
    task.set_fewshot_seed(seed=options.seed)


def _freeze(name: str, task: Any, options: SuiteOptions, wanted: list[int] | None) -> FrozenTask:
    documents = getattr(task, "task_docs", None)
    if documents is None:
        documents = task.eval_docs
    count, limit = len(documents), options.limit
    if not count:
        raise UsageError(f"task {name!r}: has no documents; add some")
    if wanted is None:
        # A share counts as lm-eval counts it: rounded up.
        most = count if limit is None else math.ceil(count * limit) if limit < 1 else int(limit)
        wanted = list(range(min(most, count)))
    elif wanted[-1] >= count:
        raise UsageError(
            f"samples: task {name!r} has no document {wanted[-1]}; it has 0 to {count - 1}"
        )
    return FrozenTask(task, wanted, documents)


def _build(
    name: str, one: FrozenTask, options: SuiteOptions, template: ChatTemplate | None
) -> None:
    try:
        one.build(options, template)
    except UsageError:
        raise
    except Exception as error:  # templates and few-shot samplers raise what they like
        raise UsageError(
            f"task {name!r}: its requests cannot be built ({type(error).__name__}: "
            f"{reason(error)}); correct the task or its options"
        ) from None


def _info(name: str, one: FrozenTask) -> TaskInfo:
    task = one.task
    better = task.higher_is_better()
    metrics = {str(metric): better.get(metric) for metric in task.aggregation()}
    filters = tuple(str(f["name"]) for f in task.get_config("filter_list") or ()) or ("none",)
    first = next((m for m in PRIMARY if m in metrics), next(iter(metrics), ""))
    kwargs = task.get_config("generation_kwargs")
    parts = (task.get_config("dataset_path"), task.get_config("dataset_name"))
    return TaskInfo(
        name=name,
        output_type=str(task.OUTPUT_TYPE),
        metrics=metrics,
        filters=filters,
        primary=(first, filters[0]),
        averaged=task.aggregation().get(first, mean) is mean,
        doc_ids=tuple(one.documents),
        num_fewshot=int(task.get_config("num_fewshot") or 0),
        version=str(task.VERSION),
        dataset=" ".join(str(part) for part in parts if part),
        generation=dict(kwargs) if kwargs else None,
    )


def _questions(infos: Sequence[TaskInfo], frozen: dict[str, FrozenTask]) -> Iterator[Question]:
    for info in infos:
        first: dict[int, Any] = {}
        for instance in frozen[info.name].requests:
            first.setdefault(instance.doc_id, instance)
        for doc_id, instance in first.items():
            # lm-eval's own hashes, which its samples have too.
            doc = json.dumps(
                instance.doc, indent=2, default=handle_non_serializable, ensure_ascii=False
            )
            prompt = hash_string(instance.arguments[0])
            yield Question(info.name, doc_id, hash_string(doc), prompt)


def _hash(instances: Sequence[Any]) -> str:
    """sha256 over task, document, kind, repeats and arguments of every request, in order."""
    digest = hashlib.sha256()
    for one in instances:
        given = [one.task_name, one.doc_id, one.idx, one.request_type, one.repeats, one.args]
        line = json.dumps(given, default=handle_non_serializable, sort_keys=True)
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _empty(instances: Sequence[Any]) -> Iterator[str]:
    """A note for every task that asks with nothing, or scores nothing."""
    counts: dict[tuple[str, str], set[int]] = {}
    for one in instances:
        texts = [text for text in one.args if isinstance(text, str)]
        if texts and not texts[0].strip():
            what = "text" if one.request_type == "loglikelihood_rolling" else "prompt"
            counts.setdefault((one.task_name, what), set()).add(one.doc_id)
    for (task, what), docs in counts.items():
        yield f"task {task}: {len(docs)} documents have an empty {what}"


def _holding_themselves(frozen: dict[str, FrozenTask]) -> Iterator[str]:
    """A note for every task that gives answers away in its examples."""
    for task, one in frozen.items():
        held, built = one.prompts.holding_themselves, one.prompts.built
        if held:
            yield f"task {task}: in {held} of {built} prompts an example is the question"
