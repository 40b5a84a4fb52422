"""``cdbench doctor --machine``: every trouble of a made-up machine is found, and no other."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from typing import Any

import pytest

from cdbench.bench.directory import RUNS
from cdbench.cli.main import main
from cdbench.doctor import gathering, measuring
from cdbench.doctor.document import DoctorDocument
from cdbench.doctor.gathering import GpuFacts, MachineFacts, timer_step_s
from cdbench.doctor.report import print_report
from cdbench.machine.gpu import GpuReading
from cdbench.machine.noise import Noise
from cdbench.manifest import collect
from cdbench.render.terminal import make_console
from cdbench.schema import CpuEnvironment, RepeatEnvironment

QUIET = CpuEnvironment(
    usable_cores=8,
    own_cpu_s=4.0,
    foreign_cpu_s=0.02,
    steal_s=0.0,
    run_wait_s=0.01,
    throttle_events=0,
    frequency_mhz=3000.0,
    temperature_c=50.0,
    load_average=0.1,
)
FINE = MachineFacts(
    timer_step_s=5e-8,
    clock_source="tsc",
    usable_cores=8,
    logical_cores=8,
    physical_cores=4,
    quota_cores=None,
    governor="performance",
    threads=4,
    device="cpu",
    total_bytes=32_000_000_000,
    available_bytes=20_000_000_000,
    swap_used_bytes=0,
    disk_error=None,
    disk_free_bytes=50_000_000_000,
    during=RepeatEnvironment(wall_s=1.0, cpu=QUIET),
    noise=Noise(12, 0.025, 0.004),
)
GPU = GpuFacts(
    has_nvml=True,
    reading=GpuReading(
        energy_j=5.0,
        sm_clock_mhz=1980,
        temperature_c=40,
        throttle_reasons=frozenset(),
        foreign_processes=0,
    ),
    most_sm_clock_mhz=1980,
)


def verdicts(facts: MachineFacts) -> dict[str, str]:
    return {f.name: f.verdict for f in measuring.measuring(facts).findings}


def during(**cpu: Any) -> dict[str, Any]:
    return {"during": RepeatEnvironment(wall_s=1.0, cpu=QUIET.model_copy(update=cpu))}


def test_a_fine_machine_has_no_warning() -> None:
    found = measuring.measuring(FINE)
    assert found.warnings == []
    assert {f.name for f in found.findings if f.verdict == "unknown"} == {"energy"}
    assert found.noise.visible_effect[6] == pytest.approx(0.0042, abs=1e-4)
    assert found.noise.visible_effect[12] == pytest.approx(0.0025, abs=1e-4)
    assert measuring.measuring(replace(FINE, gpu=GPU)).warnings == []
    assert verdicts(replace(FINE, gpu=GPU))["energy"] == "ok"


TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "slow clock": ({"clock_source": "hpet"}, "timer", "hpet"),
    "coarse timer": ({"timer_step_s": 1e-3}, "timer", "coarse"),
    "no step": ({"timer_step_s": 0.0}, "timer", "coarse"),
    "quota": ({"quota_cores": 1.5}, "cores", "a quota of 1.5"),
    "too many threads": ({"threads": 9}, "threads", "more than the 8 usable cores"),
    "shared cores": ({"threads": 8}, "threads", "try OMP_NUM_THREADS=4"),
    "governor": ({"governor": "powersave"}, "governor", "set it to performance"),
    "busy": (during(foreign_cpu_s=6.0), "other work", "other processes took 50% of the cores"),
    "beside": (during(foreign_cpu_s=3.0), "other work", "kept up to 3.0 of 8 cores busy"),
    "steal": (during(steal_s=2.0), "other work", "the hypervisor gave 25%"),
    "hot": (during(throttle_events=3), "other work", "throttled for heat"),
    "memory": ({"available_bytes": 1_000_000_000}, "memory", "may swap"),
    "disk": ({"disk_error": "Read-only file system"}, "disk", "Read-only file system"),
    "full disk": ({"disk_free_bytes": 5}, "disk", "little"),
    "noise": ({"noise": Noise(12, 0.025, 0.1)}, "noise", "use more blocks"),
    "no nvml": ({"gpu": GpuFacts(False, GpuReading())}, "nvml", "does not tell"),
    "company": (
        {"gpu": replace(GPU, reading=replace(GPU.reading, foreign_processes=2))},
        "GPU company",
        "2 other compute processes",
    ),
    "slowed": (
        {"gpu": replace(GPU, reading=replace(GPU.reading, throttle_reasons=frozenset({"heat"})))},
        "GPU clocks",
        "heat",
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_trouble_is_a_warning_that_says_what(trouble: str) -> None:
    changes, name, words = TROUBLES[trouble]
    warnings = measuring.measuring(replace(FINE, **changes)).warnings
    assert [w.name for w in warnings] == [name]
    assert words in warnings[0].detail


def test_what_is_not_told_is_unknown_and_no_warning() -> None:
    dark = replace(
        FINE,
        clock_source=None,
        physical_cores=None,
        governor=None,
        during=RepeatEnvironment(wall_s=1.0),
    )
    found = verdicts(dark)
    assert "warn" not in found.values()
    unknown = {name for name, verdict in found.items() if verdict == "unknown"}
    assert unknown == {"governor", "other work", "steal", "throttling", "energy"}


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--machine", "--json", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    document = DoctorDocument.model_validate_json(out)
    assert document.model is None
    assert document.measuring is not None
    names = [finding.name for finding in document.measuring.findings]
    assert names[0] == "timer"
    assert names[-1] == "noise"
    assert document.measuring.environment.wall_s > 0
    assert 0 < timer_step_s() < 1


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    assert gathering._disk(RUNS) == ("Read-only file system", None)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_wrap_and_no_verdict_is_lost(width: int) -> None:
    found = measuring.measuring(replace(FINE, threads=8, noise=Noise(12, 0.025, 0.1)))
    stream = io.StringIO()
    document = DoctorDocument(machine=collect(argv=[]), measuring=found)
    print_report(document, make_console(stream, width=width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for finding in found.findings:
        assert any(line.split()[:1] == [finding.verdict] and finding.name in line for line in lines)
    assert " ".join(" ".join(lines[-2:]).split()).endswith(
        "2 warnings: put right what you can before a run."
    )
