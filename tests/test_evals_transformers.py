"""Our lm-eval model at ``static`` against lm-eval's own over ``transformers``, in float64.

One random dense checkpoint on disk, read by both: the same tokens, logprobs within 1e-4 (the
library keeps float32 norms), the same texts, and the same scores of whole tasks.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, processors
from tokenizers.models import BPE

from cdbench.evals.answers import Answer
from cdbench.evals.evaluate import evaluate_suite
from cdbench.evals.lm import EngineLM
from cdbench.evals.options import SuiteOptions
from cdbench.evals.suite import load_suite
from cdbench.evals.text import TextCodec
from cdbench.models.loading import load_model
from cdbench.runtime.engine_config import EngineConfig
from tests.evaluating import CHOICE, READ, WRITE, request, write_task
from tests.test_dense_transformers import official

SPECIAL = ["<s>", "</s>", "<turn>"]
PARTS = ["th", "he", "an", "in"]
CHARACTERS = [*"abcdefghijklmnopqrstuvwxyz", " ", "\n", ".", ":", "?", "0", "1", "2"]
POSITIONS = 64
WITHIN = 1e-4

TEMPLATE = (
    "<s>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def checkpoint(directory: Path, adds_bos: bool) -> Any:
    """A random Llama with a tokenizer of letters and a few pairs of them; the official model."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS, *PARTS])}
    merges = [(pair[0], pair[1]) for pair in PARTS]
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="?"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.decoder = decoders.Fuse()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        chat_template=TEMPLATE,
    )
    changes = {"vocab_size": len(vocabulary), "max_position_embeddings": POSITIONS}
    model = official({**changes, "bos_token_id": 0, "eos_token_id": 1}, seed=11)
    model.save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def hugging_face() -> type[Any]:
    """lm-eval's own model. It imports a package for many devices, which nothing here uses."""
    # transformers asks for that package itself, so it goes first.
    import transformers  # noqa: F401

    parts = "Accelerator InitProcessGroupKwargs find_executable_batch_size get_max_memory"
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("accelerate") is None:
            for name in ("accelerate", "accelerate.utils"):
                empty = types.ModuleType(name)
                for part in parts.split():
                    setattr(empty, part, None)
                patch.setitem(sys.modules, name, empty)
        from lm_eval.models.huggingface import HFLM
    found: type[Any] = HFLM
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no-bos"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hugging_face: Any
) -> tuple[EngineLM, Any]:
    """Both models over one checkpoint."""
    from transformers import AutoTokenizer

    directory = tmp_path_factory.mktemp("llama")
    model = checkpoint(directory, request.param)
    theirs = hugging_face(
        pretrained=model,
        tokenizer=AutoTokenizer.from_pretrained(str(directory)),
        backend="causal",
        batch_size=1,
    )
    ours = load_model(str(directory), dtype="float64", device="cpu")
    config = EngineConfig(mode="static", max_residents=3, width=2, prefill_tokens=16)
    return EngineLM(ours, config), theirs


TEXTS = [
    "",
    "the hen in the inn",
    "<s>the hen",
    "</s> and",
    "a \n b",
    "<turn>then?",
    " leading and trailing ",
]


def test_tokens_are_the_same(pair: tuple[EngineLM, Any]) -> None:
    ours, theirs = pair
    assert ours.eot_token_id == theirs.eot_token_id
    assert ours.prefix_token_id == theirs.prefix_token_id
    assert ours.max_length == theirs.max_length
    assert ours.max_gen_toks == theirs.max_gen_toks
    assert ours.tokenizer_name == theirs.tokenizer_name
    for text in TEXTS:
        for add in (None, True, False):
            tokens = theirs.tok_encode(text, add_special_tokens=add)
            assert ours.tok_encode(text, add_special_tokens=add) == tokens
            assert ours.point.codec.decode(tokens) == theirs.tok_decode(tokens)


SHOTS = "".join(f"what is it: {w}\nit is the {w}.\n\n" for w in ("ant", "hen"))
PAIRS = [
    ("the hen", " is in"),
    (SHOTS[-40:] + "what is it: ", "a hen"),
    ("the ant ", "in the inn"),
    ("the hen", " "),
    ("", "the hen in the inn"),
    ("", "<s>the hen"),
    ("<s>the", " hen"),
    (SHOTS * 2, "a long context is cut from the left"),
    ("a", "t" * POSITIONS),
    ("the hen", " is out"),
]


def test_likelihoods_are_the_same(pair: tuple[EngineLM, Any]) -> None:
    ours, theirs = pair
    requests = [request("loglikelihood", *both, doc_id=i) for i, both in enumerate(PAIRS)]
    ours.answers.clear()
    found = ours.loglikelihood(requests)
    # One by one: where one text is split in two places, it mixes the two up in a batch.
    expected = [theirs.loglikelihood([one], disable_tqdm=True)[0] for one in requests]
    for (logprob, greedy), (their_logprob, their_greedy) in zip(found, expected, strict=True):
        assert logprob == pytest.approx(their_logprob, abs=WITHIN)
        assert greedy == bool(their_greedy)
    # The last token is never run, so a context of one token is just short enough.
    cut = [7, 8] if ours.tok_encode("a") != ours.tok_encode("a", False) else [7]
    assert [a.doc_id for a in ours.answers if "cut" in a.flags] == cut
    assert [a.doc_id for a in ours.answers if "empty prompt" in a.flags] == [4, 5]
    for answer in ours.answers:
        (piece,) = answer.pieces
        assert len(piece.tokens) == len(piece.logprobs) == len(piece.executed_depths)


def test_a_continuation_is_greedy_where_it_is_what_would_be_written(
    pair: tuple[EngineLM, Any],
) -> None:
    ours, theirs = pair
    written = ours.generate_until([request("generate_until", "the hen", {"max_gen_toks": 3})])[0]
    before = ours.answers[-1].pieces[0].tokens
    requests = [request("loglikelihood", "the hen", written)]
    if ours.tok_encode("the hen" + written)[-len(before) :] == before:
        assert ours.loglikelihood(requests)[0][1]
    assert ours.loglikelihood(requests)[0][1] == bool(theirs.loglikelihood(requests)[0][1])


def test_whole_texts_are_the_same(pair: tuple[EngineLM, Any]) -> None:
    ours, theirs = pair
    # Shorter than the model, as long as it, and several windows.
    texts = ["the hen", "a", "in the inn " * 7, "b" * POSITIONS, SHOTS * 3]
    requests = [request("loglikelihood_rolling", text, doc_id=i) for i, text in enumerate(texts)]
    ours.answers.clear()
    found = ours.loglikelihood_rolling(requests)
    expected = theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    assert found == pytest.approx(expected, abs=WITHIN)
    assert max(len(answer.pieces) for answer in ours.answers) > 2
    for answer, text in zip(ours.answers, texts, strict=True):
        scored = [token for piece in answer.pieces for token in piece.tokens]
        assert scored == ours.tok_encode(text)


PROMPTS = [
    ("the hen", {"max_gen_toks": 12}),
    ("in the inn", {"until": ["e", "th"], "max_gen_toks": 20}),
    ("ant", {"until": "<turn>", "max_gen_toks": 20, "do_sample": False, "temperature": 0.0}),
    ("a hen?", {"until": ["\n", ".", "a"], "max_new_tokens": 15}),
    (SHOTS * 2, {"until": [], "max_gen_toks": 8}),
    ("<s>then", {"max_gen_toks": 30}),
]


def test_texts_are_the_same(pair: tuple[EngineLM, Any]) -> None:
    ours, theirs = pair
    requests = [request("generate_until", *both, doc_id=i) for i, both in enumerate(PROMPTS)]
    ours.answers.clear()
    found = ours.generate_until(requests)
    assert found == theirs.generate_until(requests, disable_tqdm=True)
    assert len(set(found)) == len(found)
    answers: list[Answer] = ours.answers
    assert [a.doc_id for a in answers if "cut" in a.flags] == [4]
    assert {a.result.finish_reason.value for a in answers if a.result} == {"stop", "length"}
    for answer in answers:
        assert answer.capped == ("capped" in answer.flags)


def test_a_conversation_is_rendered_the_same(pair: tuple[EngineLM, Any]) -> None:
    ours, theirs = pair
    turns = [{"role": "user", "content": "hen?"}, {"role": "assistant", "content": "the"}]
    assert ours.apply_chat_template(turns[:1]) == theirs.apply_chat_template(turns[:1])
    open_ended = ours.apply_chat_template(turns, add_generation_prompt=False)
    assert open_ended == theirs.apply_chat_template(turns, add_generation_prompt=False)
    render = TextCodec(ours.point.model).renderer(True)
    assert render is not None
    assert render(turns[:1]) == ours.apply_chat_template(turns[:1])


DOCUMENTS: list[dict[str, Any]] = [
    {
        "question": f"{'the hen ' * (i % 3)}is in {'abcdefgh'[i]}:",
        "choices": ["the inn", "an ant", "a"],
        "gold": i % 3,
        "answer": "abcdefgh"[i],
        "text": "in the inn " * i + "then",
    }
    for i in range(6)
]


def test_whole_tasks_score_the_same(
    pair: tuple[EngineLM, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files, examples and metrics: through lm-eval from end to end, and through us."""
    import yaml
    from lm_eval import simple_evaluate

    ours, theirs = pair
    shots = {"num_fewshot": 1, "fewshot_split": "test"}
    paths = [
        write_task(tmp_path, "choose", CHOICE, DOCUMENTS, **shots),
        write_task(tmp_path, "write", WRITE, DOCUMENTS, **shots),
        write_task(tmp_path, "read", READ, DOCUMENTS),
    ]
    configs = []
    for path in paths:
        config = yaml.safe_load(path.read_text())
        config["dataset_kwargs"]["data_files"]["test"] = str(path.with_suffix(".jsonl"))
        configs.append(config)
    expected = simple_evaluate(
        model=theirs, tasks=configs, bootstrap_iters=1, task_manager=_no_tasks()
    )
    suite = load_suite([str(path) for path in paths], SuiteOptions())
    scores = evaluate_suite(suite, ours)
    assert scores is not None
    for name, task in scores.tasks.items():
        result = expected["results"][name]
        for metric in task.metrics:
            key = f"{metric.metric},{metric.filter}"
            assert metric.aggregate == pytest.approx(result[key], rel=WITHIN)
            error = result[f"{metric.metric}_stderr,{metric.filter}"]
            assert metric.stderr == (None if error == "N/A" else pytest.approx(error, rel=1e-9))
        theirs_by_id = {sample["doc_id"]: sample for sample in expected["samples"][name]}
        for sample in task.samples:
            other = theirs_by_id[sample["doc_id"]]
            for key in ("doc_hash", "prompt_hash", "target_hash"):
                assert sample[key] == other[key]
    assert scores.tasks["choose"].adaptive
    assert not any(task.failed for task in scores.tasks.values())


def _no_tasks() -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=False)
