"""Recordings on disk: what was changed, damaged or made up is refused, in one line."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdbench.errors import OutputError, UsageError
from cdbench.grammar import parse_exit
from cdbench.runtime.core import ExitPolicy
from cdbench.schema import ExitSettings, ModelIdentity, WorkloadRecord
from cdbench.schema.files import to_json, write_whole
from cdbench.schema.recording import AgreementRecord, Recording
from cdbench.workloads import recording_files
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.exit_trace import load_exit_trace
from cdbench.workloads.identity import workload_hash
from cdbench.workloads.recording import derive
from cdbench.workloads.recording_files import read_recording, sealed, write_recording
from cdbench.workloads.signals_file import pack_signals
from tests.comparing import MANIFEST

LOOPS = 4
POLICY = ExitPolicy("cdf", 0.5, min_loops=2, lag=1)
LATER = (5, 3, 0)
"""Later tokens of each request."""
Document = dict[str, Any]


def signals() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    drawn = [np.sort(rng.random((n, LOOPS)), axis=1) for n in LATER]
    return [d.astype(np.float32).astype(np.float64) for d in drawn]


def made(drawn: list[np.ndarray]) -> tuple[Recording, bytes]:
    """A recording with these signals, as ``cdbench record`` writes it."""
    requests = []
    for place, lines in enumerate(drawn):
        depths, tokens = derive(lines, POLICY), len(lines) + 1
        requests.append(
            WorkloadRecord(
                id=f"r{place}",
                task="sum",
                doc_id=place,
                prompt=[place + 1, 7, 9],
                tokens=list(range(10 * place, 10 * place + tokens)),
                executed_depths=[LOOPS, *depths.executed.tolist()],
                requested_depths=[LOOPS, *depths.requested.tolist()],
            )
        )
    stored, content = pack_signals(drawn, LOOPS, "float32")
    document = Recording(
        marks=["made up"],
        notes=["a note"],
        model=ModelIdentity(name="m", files={"config.json": "0" * 64}),
        weight_seed=3,
        exit=ExitSettings(rule="cdf", threshold=0.5, min_loops=2, lag=1),
        max_loops=LOOPS,
        kv_layout="per-loop",
        dtype="float32",
        device="cpu",
        workload_hash=workload_hash(requests, ArrivalSchedule()),
        source="demo",
        signals=stored,
        agreement=[
            AgreementRecord(
                threshold=0.7,
                tokens=8,
                equal=1.0,
                mean_difference=0.0,
                mean_depth_derived=3.0,
                mean_depth_live=3.0,
            )
        ],
        config={"first_token": "full", "weights": "random:3", "tasks": ["sum"]},
        manifest=MANIFEST,
        requests=requests,
    )
    return sealed(document), content


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_recording(tmp_path, *made(signals()))
    return tmp_path


def read_document(directory: Path) -> Document:
    document: Document = json.loads((directory / "record.json").read_text())
    return document


def write_document(directory: Path, document: Document) -> None:
    (directory / "record.json").write_text(json.dumps(document))


def vouched(document: Document) -> Document:
    """The document as someone leaves it who also makes the hash of its content right."""
    seal: Document = json.loads(
        to_json(sealed(Recording.model_validate_json(json.dumps(document))))
    )
    return seal


def old(document: Document) -> Document:
    """The document as it was before the hash of its content was kept."""
    return {key: value for key, value in document.items() if key != "content_sha256"}


def refused(directory: Path) -> str:
    """The one line with which it is refused, at its own threshold and at another."""
    said = set()
    for at in ("", "@0.7"):
        with pytest.raises(UsageError) as caught:
            load_exit_trace(parse_exit(f"trace:{directory}{at}"))
        said.add(str(caught.value))
    (line,) = said
    assert "\n" not in line
    return line


def test_what_was_written_is_read_back(directory: Path) -> None:
    recorded = read_recording(directory)
    assert recorded.document == made(signals())[0]
    for found, wanted in zip(recorded.signals, signals(), strict=True):
        assert np.array_equal(found, wanted)
    # The form of the text is nobody's business.
    write_document(directory, dict(reversed(read_document(directory).items())))
    assert read_recording(directory).document == recorded.document


# One changed value.


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every single value of a JSON document, with where it stands."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    else:
        yield path, value
    for key, below in inside:
        yield from leaves(below, (*path, key))


def changed(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    other = copy.deepcopy(document)
    place: Any = other
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return other


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1


def test_any_one_changed_value_of_the_document_is_refused(directory: Path) -> None:
    document = read_document(directory)
    paths = list(leaves(document))
    assert len(paths) > 80
    for path, value in paths:
        write_document(directory, changed(document, path, another(value)))
        assert refused(directory), path


def test_a_changed_byte_of_the_signals_is_refused(directory: Path) -> None:
    file = directory / "signals.npz"
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UsageError, match=r"signals\.npz: is not the file"):
            read_recording(directory)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:100])]
)
def test_missing_or_cut_signals_are_refused(
    directory: Path, damage: Callable[[Path], object]
) -> None:
    damage(directory / "signals.npz")
    with pytest.raises(UsageError, match=r"signals\.npz: .*; record it again"):
        read_recording(directory)


def rearranged(requests: list[Any]) -> Iterator[list[Any]]:
    yield requests[::-1]
    yield requests[:-1]
    yield [*requests, requests[-1]]


def test_requests_are_neither_lost_nor_added_nor_moved(directory: Path) -> None:
    document = read_document(directory)
    for requests in rearranged(document["requests"]):
        write_document(directory, {**document, "requests": requests})
        refused(directory)


@pytest.mark.parametrize("vouch", [old, vouched])
def test_ids_prompts_tokens_and_depths_are_held_to_the_hash_of_the_workload(
    directory: Path, vouch: Callable[[Document], Document]
) -> None:
    """Without the hash of the content too, as in documents from before it was kept."""
    document = read_document(directory)
    write_document(directory, vouch(document))
    read_recording(directory)
    for request in range(len(LATER)):
        for key in ("id", "prompt", "tokens", "executed_depths"):
            for path, value in leaves(document["requests"][request][key]):
                where = ("requests", request, key, *path)
                write_document(directory, vouch(changed(document, where, another(value))))
                refused(directory)


def test_two_requests_of_one_id_are_refused_whoever_vouches(directory: Path) -> None:
    document = read_document(directory)
    document["requests"][1]["id"] = "r0"
    requests = [WorkloadRecord.model_validate(r) for r in document["requests"]]
    document["workload_hash"] = workload_hash(requests, ArrivalSchedule())
    write_document(directory, vouched(document))
    assert "two requests have the id 'r0'" in refused(directory)


def test_depths_are_held_to_the_loops_and_to_the_signals(directory: Path) -> None:
    document = read_document(directory)
    for depths, why in (([0], "a depth is not 1 to 4"), ([5], "a depth is not 1 to 4")):
        other = changed(document, ("requests", 2, "requested_depths"), depths)
        write_document(directory, vouched(other))
        assert why in refused(directory)
    other = changed(document, ("requests", 0, "requested_depths", 1), 1)
    write_document(directory, vouched(other))
    assert "not those that its signals give" in refused(directory)


# Signals that are not what they say.


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None, fortran: bool = False) -> bytes:
    """A member of an npz, under a header that may claim another shape."""
    file = io.BytesIO()
    header = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": fortran,
        "shape": array.shape if shape is None else shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def npz(lines: bytes, offsets: bytes, method: int = zipfile.ZIP_DEFLATED, more: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("signals.npy", lines)
        archive.writestr("offsets.npy", offsets)
        if more:
            archive.writestr(more, b"")
    return file.getvalue()


def lines() -> np.ndarray:
    return np.concatenate(signals()).astype(np.float32)


OFFSETS = np.cumsum([0, *LATER], dtype=np.int64)
LIES: dict[str, Callable[[], bytes]] = {
    "a shape beyond all memory": lambda: npz(npy(lines(), (10**12, LOOPS)), npy(OFFSETS)),
    "a width beyond all memory": lambda: npz(npy(lines(), (8, 10**12)), npy(OFFSETS)),
    "a negative shape": lambda: npz(npy(lines(), (-8, LOOPS)), npy(OFFSETS)),
    "many zeros": lambda: npz(npy(np.zeros((10**6, LOOPS), np.float32)), npy(OFFSETS)),
    "a line less": lambda: npz(npy(lines()[:-1]), npy(OFFSETS)),
    "a loop less": lambda: npz(npy(lines()[:, :3]), npy(OFFSETS)),
    "too few numbers": lambda: npz(npy(lines()[:-1], (8, LOOPS)), npy(OFFSETS)),
    "too many numbers": lambda: npz(npy(lines()) + b"0", npy(OFFSETS)),
    "numbers by column": lambda: npz(npy(lines(), fortran=True), npy(OFFSETS)),
    "other numbers": lambda: npz(npy(lines().astype(np.float64)), npy(OFFSETS)),
    "objects": lambda: npz(npy(np.array([[None] * LOOPS] * 8, object)), npy(OFFSETS)),
    "other requests": lambda: npz(npy(lines()), npy(OFFSETS + 1)),
    "offsets in another form": lambda: npz(npy(lines()), npy(OFFSETS.astype(np.int32))),
    "no array": lambda: npz(b"", npy(OFFSETS)),
    "a third member": lambda: npz(npy(lines()), npy(OFFSETS), more="more.npy"),
    "another compression": lambda: npz(npy(lines()), npy(OFFSETS), zipfile.ZIP_LZMA),
    "no archive": lambda: b"PK",
    "a cut archive": lambda: npz(npy(lines()), npy(OFFSETS))[:-30],
}


def vouch_for(directory: Path, content: bytes) -> None:
    """Other signals, and a document that vouches for them."""
    (directory / "signals.npz").write_bytes(content)
    document = read_document(directory)
    document["signals"]["sha256"] = hashlib.sha256(content).hexdigest()
    write_document(directory, vouched(document))


def test_signals_made_by_hand_are_read(directory: Path) -> None:
    vouch_for(directory, npz(npy(lines()), npy(OFFSETS), zipfile.ZIP_STORED))
    read_recording(directory)


def test_signals_of_another_run_fit_in_size_and_are_refused(directory: Path) -> None:
    vouch_for(directory, npz(npy(np.zeros_like(lines())), npy(OFFSETS)))
    assert "not those that its signals give" in refused(directory)


@pytest.mark.parametrize("lie", LIES)
def test_signals_that_are_something_else_are_refused_and_take_no_memory(
    directory: Path, lie: str
) -> None:
    vouch_for(directory, LIES[lie]())
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"signals\.npz: has not one line of 4 loops"):
            read_recording(directory)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000


def test_loops_that_only_the_documents_claim_take_no_memory(tmp_path: Path) -> None:
    """Requests of one token have no signals that could contradict them."""
    document, _ = made([np.empty((0, LOOPS))])
    _, content = pack_signals([np.empty((0, 10**12))], 10**12, "float32")
    write_recording(tmp_path, document, content)
    claim = changed(read_document(tmp_path), ("max_loops",), 10**12)
    claim["signals"]["loops"] = 10**12
    write_document(tmp_path, claim)
    vouch_for(tmp_path, content)
    assert read_recording(tmp_path).signals[0].size == 0


def test_a_file_larger_than_its_numbers_is_not_even_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (directory / "signals.npz").open("r+b") as file:
        file.truncate(10**9)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    with pytest.raises(UsageError, match="is not the file"):
        read_recording(directory)


# A document of `cdbench generate`, which has no hash.


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("requests", 0, "tokens", 0), -1, "request 0: it has no prompt, or a token id below 0"),
        (("requests", 0, "prompt_tokens"), 0, "request 0: it has no prompt"),
        (("requests", 1, "depths", 1), 5, "request 1: a depth is not 1 to 4"),
        (("requests", 1, "depths", 1), 0, "request 1: a depth is not 1 to 4"),
        (("requests", 1, "depths"), [4], "request 1: it has 2 tokens and 1 depths"),
        (("requests", 1, "index"), 0, "request 1: its index is 0"),
        (("config", "exit_lag"), 2, "`config.exit_lag`"),
        (("config", "exit"), "trace:x", "`config.exit` is itself a trace"),
    ],
)
def test_a_document_of_depths_is_held_to_its_lengths_and_ranges(
    tmp_path: Path, path: tuple[Any, ...], value: object, why: str
) -> None:
    request = {"prompt_tokens": 2, "tokens": [5, 6], "depths": [4, 2], "logprobs": [0.0, 0.0]}
    ended = {"text": None, "finish_reason": "length", "error": None}
    document = {
        "schema_version": 1,
        "model": "m",
        "config": {"exit": "cdf@0.5", "R": LOOPS, "min_loops": 1, "exit_lag": 0},
        "requests": [{"index": i, **request, **ended} for i in range(2)],
    }
    file = tmp_path / "trace.json"
    document = json.loads(json.dumps(document))  # each request with lists of its own
    file.write_text(json.dumps(document))
    assert load_exit_trace(parse_exit(f"trace:{file}")).max_loops == LOOPS
    file.write_text(json.dumps(changed(document, path, value)))
    with pytest.raises(UsageError) as caught:
        load_exit_trace(parse_exit(f"trace:{file}"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


# Writing.


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KeyboardInterrupt(), "signals.npz"),
        (KeyboardInterrupt(), "record.json"),
        (OutputError("full"), "record.json"),
    ],
)
def test_a_recording_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, name: str
) -> None:
    def interrupted(path: Path, content: str | bytes) -> None:
        write_whole(path, content)
        if path.name == name:
            raise error

    monkeypatch.setattr(recording_files, "write_whole", interrupted)
    with pytest.raises(type(error)):
        write_recording(tmp_path, *made(signals()))
    assert list(tmp_path.iterdir()) == []
