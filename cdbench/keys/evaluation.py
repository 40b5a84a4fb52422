"""How the tasks are asked: examples, documents, templates and what generates their texts."""

from __future__ import annotations

from pydantic import Field

from cdbench.keys.section import FileName, Section, Seed

LMEVAL_FEWSHOT_SEED = 1234


class EvaluationConfig(Section):
    """What lm-eval's own command line would be told, the same for every mode."""

    num_fewshot: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Examples before each question; null: each task's own number (one that fixes 0 "
        "keeps it)",
    )
    samples: FileName | None = Field(
        None,
        description='Which documents are asked, in place of limit: a JSON file {"task": [ids]}, or '
        "such an object itself; tasks not named run whole",
    )
    gen_kwargs: str | None = Field(
        None,
        min_length=1,
        description="Generation arguments over the tasks' own, as KEY=VALUE,KEY=VALUE: "
        "max_gen_toks, do_sample, temperature, top_k, top_p",
    )
    chat_template: bool | str = Field(
        False,
        description="Write prompts as conversations with the tokenizer's chat template; a name "
        "picks one of several",
    )
    system_instruction: str | None = Field(
        None, description="What stands before every prompt, or as the system turn of its chat"
    )
    fewshot_as_multiturn: bool = Field(
        True, description="With a chat template: examples as turns of their own"
    )
    fewshot_seed: Seed = Field(
        LMEVAL_FEWSHOT_SEED, description="Draws the examples; the default is lm-eval's"
    )
