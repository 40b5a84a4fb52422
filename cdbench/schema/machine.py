"""The manifest: what was run, on what."""

from __future__ import annotations

from pydantic import Field, JsonValue

from cdbench.schema.base import Measure, Record


class GitState(Record):
    """The checkout cdbench ran from."""

    commit: str
    dirty: bool = Field(description="true where tracked or untracked files differ from the commit")


class CpuInfo(Record):
    """The processor and how much of it this process may use."""

    model: str | None
    logical_cores: int | None
    physical_cores: int | None
    affinity: list[int] | None = Field(description="logical cores this process may run on")
    quota_cores: Measure = Field(None, description="container limit in cores, where one is set")
    governor: str | None = Field(description="frequency governor of the first core")


class DeviceInfo(Record):
    """Where the model ran. Everything but ``kind`` is null on a CPU."""

    kind: str = Field(description="cpu or cuda")
    name: str | None = None
    capability: str | None = Field(None, description="CUDA compute capability, such as 9.0")
    memory_bytes: int | None = None
    runtime: str | None = Field(None, description="CUDA version of the torch build")


class ModelIdentity(Record):
    """A model by name (a directory gives its last part) and by content."""

    name: str
    files: dict[str, str] = Field(description="file name → sha256 of config.json and weights")


class RepeatedRun(Record):
    """The run that ``run --from`` repeated, and what is no longer as it was then."""

    run: str = Field(description="its directory, by name only")
    started_utc: str
    overridden: list[str] = Field(
        default_factory=list, description="configuration keys given another value beside --from"
    )
    differences: list[str] = Field(
        default_factory=list, description="code, packages, machine or model files that differ"
    )
    same_workload: bool | None = Field(
        None, description="whether both workloads have the same hash; null where nothing was timed"
    )


class Manifest(Record):
    """What was run, on what. No user or host name, no paths but those typed."""

    started_utc: str = Field(description="ISO 8601, UTC")
    command: list[str] = Field(description="command line as typed; the program by name only")
    cdbench_version: str | None
    git: GitState | None = Field(description="null outside a checkout")
    source_sha256: str | None = Field(
        None, description="over cdbench's Python files: names the code outside a checkout too"
    )
    python: str
    packages: dict[str, str | None] = Field(description="package → version, null where absent")
    platform: str
    cpu: CpuInfo
    ram_bytes: int | None
    load_average: list[float] | None = Field(description="1, 5 and 15 minutes, at the start")
    torch_threads: int | None
    torch_interop_threads: int | None
    device: DeviceInfo
    env: dict[str, str] = Field(description="set variables that change speed or numerics")
    models: list[ModelIdentity]
    given: dict[str, JsonValue] | None = Field(
        None, description="configuration keys that were set by file, --set or flag"
    )
    repeated: RepeatedRun | None = Field(None, description="the run that this one repeats")
