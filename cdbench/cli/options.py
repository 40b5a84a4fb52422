"""Options that several commands have, so that they mean and say the same in each."""

from __future__ import annotations

from typing import Annotated

import typer

ModelOption = Annotated[str | None, typer.Option(help="Demo name, checkpoint directory or hub id.")]
ThresholdOption = Annotated[float | None, typer.Option(help="The same as RULE@THRESHOLD.")]
MinLoopsOption = Annotated[int | None, typer.Option(help="Floor on the executed depth.")]
MaxLoopsOption = Annotated[int | None, typer.Option(help="Full depth; default: the model's.")]
LagOption = Annotated[int | None, typer.Option(help="Loops from decision to exit: 0 or 1.")]
KvOption = Annotated[str | None, typer.Option(help="per-loop, first-shared, shared or slots:M.")]
DtypeOption = Annotated[
    str | None, typer.Option(help="auto, float32, bfloat16, float16 or float64.")
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
WeightsOption = Annotated[str | None, typer.Option(help="checkpoint or random:SEED.")]
LayersOption = Annotated[
    str | None, typer.Option(help="Layers P-C-K in place of the model's; random weights only.")
]
