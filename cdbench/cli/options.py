"""Options that several commands have, so that they mean and say the same in each."""

from __future__ import annotations

from typing import Annotated

import typer

ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Demo name (`cdbench list models`), checkpoint directory or hub id; default: "
        "demo-ouro.",
    ),
]
ThresholdOption = Annotated[
    float | None, typer.Option(metavar="X", help="The same as --exit RULE@X.")
]
MinLoopsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="No token exits before loop N; default: 1."),
]
MaxLoopsOption = Annotated[
    int | None, typer.Option(metavar="R", help="Loops at full depth; default: the model's own.")
]
LagOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Loops from decision to exit, 0 or 1; default: 0."),
]
KvOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYOUT",
        help="KV slots of a core layer: per-loop (default), first-shared, shared or slots:M.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE", help="auto (default), float32, bfloat16, float16, or float64 for proofs."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="auto (default: CUDA where there is a device), cpu or cuda."
    ),
]
WeightsOption = Annotated[
    str | None, typer.Option(metavar="KIND", help="checkpoint (default) or random:SEED.")
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="P-C-K",
        help="Layers of prelude, core and coda in place of the model's; random weights only.",
    ),
]
