"""A gate on disk: written whole, read back, refused for what it was not trained for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cdbench import manifest, resources
from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec
from cdbench.models.loading import LoadedModel
from cdbench.runtime.exit_checks import check_looks_ahead
from cdbench.runtime.exit_rule import Falling
from cdbench.runtime.exits import RULES
from cdbench.runtime.lookahead import FIRST_LOOP, Gate, GateKind, Lookahead, PreLoopGate, Watch
from cdbench.schema.files import read_document, write_document, write_whole
from cdbench.schema.lookahead import GATE_FILE, GATE_WEIGHTS_FILE, GateDocument, GateSetting

ANOTHER = "fit one with `cdbench predictor`"
BEFORE = "before."
"""What the tensors of a pre-loop gate are called by."""


@dataclass(frozen=True)
class StoredGate:
    """A gate read from disk; ``before``: its pre-loop gate."""

    document: GateDocument
    gate: Gate
    source: str
    before: PreLoopGate | None = None

    def lookahead(self, threshold: float | None, device: torch.device) -> Lookahead:
        """What a request's policy takes; ``threshold`` None: each gate's own."""
        document = self.document
        ran, watch = document.setting.exit, document.watch
        assert ran.threshold is not None, "checked on reading"
        before = self.before
        if before is not None:
            at = before.threshold if threshold is None else threshold
            before = PreLoopGate(_on(before.gate, device), at)
        return Lookahead(
            gate=_on(self.gate, device),
            threshold=document.threshold if threshold is None else threshold,
            rule=ran.rule,
            rule_threshold=ran.threshold,
            max_loops=document.setting.max_loops,
            source=self.source,
            sha256=document.weights_sha256,
            watch=Watch(watch.window, watch.floor, watch.least_calls),
            pre_loop=before,
        )


def write_gate(
    directory: Path, document: GateDocument, gate: Gate, before: PreLoopGate | None = None
) -> GateDocument:
    """Write both files or none, the document last; answers it with the hash of the weights."""
    tensors = dict(gate.weights)
    if before is not None:
        tensors |= {f"{BEFORE}{name}": weight for name, weight in before.gate.weights.items()}
    content = save({name: weight.contiguous() for name, weight in tensors.items()})
    document = document.model_copy(update={"weights_sha256": hashlib.sha256(content).hexdigest()})
    weights, path = directory / GATE_WEIGHTS_FILE, directory / GATE_FILE
    try:
        write_whole(weights, content)
        write_document(path, document)
    except BaseException:
        for file in (path, weights):
            file.unlink(missing_ok=True)
        raise
    return document


def read_gate(source: str) -> StoredGate:
    """A gate by its directory, its ``lookahead.json``, or the demo model that it ships with.

    UsageError where it is missing, damaged, or its two files do not belong together.
    """
    path = find_gate(source)
    document = read_document(GateDocument, path)
    file = path.parent / GATE_WEIGHTS_FILE
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; {ANOTHER}") from None
    if hashlib.sha256(content).hexdigest() != document.weights_sha256:
        raise UsageError(f"{file}: is not the file that {GATE_FILE} was written with; {ANOTHER}")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise UsageError(f"{file}: {error}; {ANOTHER}") from None
    if (wrong := _what_is_wrong(document, tensors)) is not None:
        raise UsageError(f"{path}: {wrong}; {ANOTHER}")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(BEFORE)}
    gate = Gate(document.gate, own, document.falls)
    if document.pre_loop is None:
        return StoredGate(document, gate, source)
    weights = {name.removeprefix(BEFORE): tensors[name] for name in tensors.keys() - own.keys()}
    before = PreLoopGate(Gate(document.gate, weights, document.falls), document.pre_loop.threshold)
    return StoredGate(document, gate, source, before)


def find_gate(source: str) -> Path:
    """The ``lookahead.json`` that a text names; UsageError where it names none."""
    path = Path(source)
    if path.is_dir():
        path = path / GATE_FILE
    elif not path.exists() and resources.canonical_model(source) in resources.demo_names():
        path = resources.demo_path(source) / GATE_FILE
    if not path.is_file():
        raise UsageError(f"lookahead {source}: no {GATE_FILE} there; {ANOTHER}")
    return path


def gate_for(spec: ExitSpec, model: LoadedModel, max_loops: int, kv_layout: str) -> Lookahead:
    """The gate of a ``lookahead:PATH[@THRESHOLD]`` rule, for this model, R and layout.

    UsageError names what it was trained for where that is something else.
    """
    assert spec.predictor is not None, "only called for the rule lookahead"
    stored = read_gate(spec.predictor)
    check_setting(stored, model, max_loops, kv_layout)
    return stored.lookahead(spec.threshold, model.network.device)


def check_setting(stored: StoredGate, model: LoadedModel, max_loops: int, kv_layout: str) -> None:
    """Raise UsageError where a gate was trained for another model, rule, R or KV layout."""
    setting, where = stored.document.setting, f"lookahead {stored.source}"
    if (other := _other_model(setting, model)) is not None:
        raise UsageError(f"{where}: {other}; {ANOTHER} for {model.name}")
    for what, trained, has in (
        ("R", setting.max_loops, max_loops),
        ("KV layout", setting.kv_layout, kv_layout),
        ("state size", setting.state_size, model.network.dims.hidden_size),
    ):
        if trained != has:
            raise UsageError(
                f"{where}: was trained for {what} {trained}, this run has {has}; "
                f"{ANOTHER}, or run at {trained}"
            )


def _other_model(setting: GateSetting, model: LoadedModel) -> str | None:
    """How the model differs from the one that the gate was trained on; None where it is it."""
    trained = setting.model
    if (setting.weight_seed, setting.layers) != (model.weight_seed, model.layers):
        return (
            f"was trained on {trained.name} with {_weights(setting.weight_seed, setting.layers)}, "
            f"this is {model.name} with {_weights(model.weight_seed, model.layers)}"
        )
    own = manifest.identify(model.name, model.files).files
    changed = sorted(name for name in trained.files if own.get(name) != trained.files[name])
    if changed:
        names = ", ".join(changed)
        return f"was trained on {trained.name}, and {model.name} has other files ({names})"
    return None


def _weights(seed: int | None, layers: str | None) -> str:
    kind = "the checkpoint's weights" if seed is None else f"random weights of seed {seed}"
    return kind if layers is None else f"{kind} and layers {layers}"


def _what_is_wrong(document: GateDocument, tensors: dict[str, Tensor]) -> str | None:
    setting = document.setting
    rule = RULES.get(setting.exit.rule)
    if rule is None or setting.exit.threshold is None:
        return f"exit: {setting.exit.rule!r} is no rule with a threshold"
    check_looks_ahead(rule.name)
    if document.falls != isinstance(rule, Falling):
        return f"falls: is not what rule {rule.name} does"
    loops, size = setting.max_loops - 2, setting.state_size
    shapes = _shapes(document.gate, loops, size + 1, tensors.get("out"))
    if document.pre_loop is not None:
        out = tensors.get(f"{BEFORE}out")
        known = _shapes(document.gate, FIRST_LOOP, size, out)
        shapes |= {f"{BEFORE}{name}": shape for name, shape in known.items()}
    if set(tensors) != set(shapes):
        return f"its tensors are {', '.join(sorted(tensors))}, not {', '.join(sorted(shapes))}"
    for name, shape in shapes.items():
        found = tensors[name]
        if tuple(found.shape) != shape:
            return f"{name} has shape {list(found.shape)}, expected {list(shape)}"
        if not found.is_floating_point() or not bool(torch.isfinite(found).all()):
            return f"{name} is not all finite numbers"
    return None


def _shapes(
    kind: GateKind, loops: int, inputs: int, out: Tensor | None
) -> dict[str, tuple[int, ...]]:
    """Of a gate's tensors; ``out``, as it was found, says how many hidden units it has."""
    if kind == "linear":
        return {"weight": (loops, inputs), "bias": (loops,)}
    hidden = 0 if out is None or out.ndim != 1 else int(out.shape[0])
    return {
        "hidden": (hidden, inputs),
        "hidden_bias": (loops, hidden),
        "out": (hidden,),
        "bias": (loops,),
    }


def _on(gate: Gate, device: torch.device) -> Gate:
    weights = {name: weight.to(device) for name, weight in gate.weights.items()}
    return Gate(gate.kind, weights, gate.falls)
