"""What serving engines share: a stack of their own, and a project's engine.py that is copied for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.limits import ServingLimits
from generator.case.stacks import list_builds, parse_version
from generator.errors import UsageError
from generator.model import ModelSpec
from generator.techniques.base import Technique, list_axes
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

Flag = str | int | float | bool


def serve_many(case: Case) -> dict[str, bool]:
    """Several requests at a time come and go: a server at work, and no batch that begins and ends together."""
    return {"continuous": case.workload.serves and case.workload.concurrency > 1}


class Engine(Technique):
    """Base of the engines that bring their own code of the model.

    ``engine`` is its name for the cost model, ``role`` its environment in stacks.toml, ``leaf`` its engine.py among
    templates/fragments/engines. ``conversion`` is the role of the environment that makes its weights, "" where it reads the
    model's own files; ``model_types`` those that it can convert, none: every decoder. ``command`` are the words that start its own
    OpenAI-compatible server, none where the project's server.py is in front of it. ``checkpoints`` are the methods (quant_method of
    config.json) whose packed weights it runs, ``rotations`` the kinds of rotary embeddings that it turns as Transformers does, beside
    plain ones (None: all), by type of model where "" stands for others, ``windowed`` the types
    whose windows it keeps to (None: all), ``adapters`` the forms of adapters that it takes beside a model. ``imports`` are the
    modules of templates/fragments/serving that its engine.py imports, ``of_copies`` those that its server takes where it runs copies of
    the model, ``starts_processes`` whether it computes in processes of its own,
    which a job must not leave behind. ``flag_reasons``: by flag of its own server, why it has its value.
    """

    axis = "engine"
    modes = ("infer",)
    engine: ClassVar[str] = ""
    role: ClassVar[str] = ""
    leaf: ClassVar[str] = ""
    conversion: ClassVar[str] = ""
    model_types: ClassVar[frozenset[str]] = frozenset()
    command: ClassVar[tuple[str, ...]] = ()
    rotations: ClassVar[Mapping[str, frozenset[str]] | None] = None
    windowed: ClassVar[frozenset[str] | None] = None
    checkpoints: ClassVar[frozenset[str]] = frozenset()
    adapters: ClassVar[frozenset[str]] = frozenset()
    unadapted: ClassVar[frozenset[str]] = frozenset()
    """architectures beside which it takes none"""
    imports: ClassVar[tuple[str, ...]] = ("engine_thread",)
    of_copies: ClassVar[tuple[str, ...]] = ()
    starts_processes: ClassVar[bool] = False
    flag_reasons: ClassVar[Mapping[str, str]] = {}

    def obstacle(self, case: Case) -> str | None:
        if case.portable:
            return "the machine is not known"
        if not case.workload.task_facts.writes:
            return f"it goes on with texts, and Transformers does {case.workload.task}"
        return self.explain_model(case) or self.explain_device(case)

    def explain_model(self, case: Case) -> str | None:
        """Why it cannot run the model, or ``None``."""
        adapter = case.workload.served_adapter
        if adapter and adapter.form not in self.adapters:
            return f"it takes no adapter ({adapter.form}) beside a model: merge it into one (python merge.py where it was trained)"
        if adapter and case.model.architecture in self.unadapted:
            return f"it takes no adapter beside {case.model.architecture}: merge it into one (python merge.py where it was trained)"
        checkpoints = self.list_checkpoints(case)
        if self.conversion and case.model.quantization and not checkpoints:
            return f"its converter reads plain weights, and the checkpoint is quantized ({case.model.quantization})"
        if case.model.quantization and case.model.quantization not in checkpoints:
            ways = f"those of {', '.join(sorted(checkpoints))} alone" if checkpoints else "none"
            return f"the checkpoint is quantized ({case.model.quantization}), and of such it runs {ways}"
        if self.model_types and case.model.model_type not in self.model_types:
            return f"its converter knows no models of type {case.model.model_type}"
        return self.explain_window(case) or self.explain_rotation(case.model)

    def keeps_windows(self, model: ModelSpec) -> bool:
        """Whether it reads texts that are longer than what layers of the model see as the model does."""
        return self.windowed is None or model.model_type in self.windowed or not model.shortest_window

    def explain_window(self, case: Case) -> str | None:
        """Why it would not answer what is asked for as the model does, or ``None``: within a window all engines do, and a plan's limit
        is the window then."""
        kind, window = case.model.model_type, case.model.shortest_window
        asked = case.workload.seq_len + case.workload.new_tokens
        if self.keeps_windows(case.model) or (window and asked <= window):
            return None
        return (
            f"it does not keep to the window of the layers of models of type {kind} ({window} tokens, and {asked} are asked for: fewer "
            "--prompt-tokens or --new-tokens)"
        )

    def explain_rotation(self, model: ModelSpec) -> str | None:
        """Why it would turn queries and keys otherwise than the model, or ``None``."""
        if self.rotations is None or not model.rotation:
            return None
        if model.rotation in self.rotations.get(model.model_type, self.rotations.get("", frozenset())):
            return None
        return f"its converter does not write the rotary embeddings of models of type {model.model_type} that are scaled ({model.rotation})"

    def list_checkpoints(self, case: Case) -> frozenset[str]:
        """Of ``checkpoints``, those that it runs on the device."""
        return self.checkpoints

    def choose_conversion(self, case: Case) -> tuple[str, str]:
        """The environment that makes its weights of the model's files, and the leaf of templates/fragments/conversions."""
        return self.conversion, self.leaf

    def explain_device(self, case: Case) -> str | None:
        """Why it cannot run on the device, or ``None``."""
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        adapter = case.workload.served_adapter
        beside = {"adapter_bytes": adapter.bytes} if adapter else {}
        return {"engine": self.engine, **serve_many(case), **beside}

    def list_flags(self, limits: ServingLimits, layout: Layout, dtype: str, weights: str) -> Mapping[str, Flag]:
        """Of its own server, without dashes: what keeps it within the limits, and how it divides the model. ``dtype`` is that of the
        arithmetic, ``weights`` how they are stored, as config.yaml has it."""
        return {}

    def list_cache_flags(self, dtype: str) -> Mapping[str, Flag]:
        """Those that make its own server keep keys and values in another format than that of the arithmetic."""
        return {}

    def list_adapter_flags(self, rank: int) -> Mapping[str, Flag]:
        """Those that make its own server take an adapter; its launcher adds where that lies."""
        return {}

    def list_lookup_flags(self, tokens: int) -> Mapping[str, Flag]:
        """Those that make its own server look prompts up for proposals of so many tokens."""
        return {}

    def list_draft_flags(self, tokens: int) -> Mapping[str, Flag]:
        """Those that make its own server let a small model propose so many tokens; its launcher adds where that lies."""
        return {}


def list_engines() -> tuple[Engine, ...]:
    """All that are found in generator/techniques/engine."""
    return tuple(t for axis in list_axes() for t in axis.members if isinstance(t, Engine))


class CpuEngine(Engine):
    """One that is taken on CPUs, its weights converted before it is served."""

    provides = frozenset({Trait.OWN_KERNELS, Trait.COMPUTES_IN_32_BITS})
    adds = 3
    """its environment, that of its converter, and the converted weights"""

    def explain_device(self, case: Case) -> str | None:
        return None if case.on_cpu else "it is taken on CPUs: its builds for accelerators were not tried"

    def edits(self, case: Case) -> Edits:
        """Transformers is there for its tokenizers, and would say at every start that torch is not."""
        return Edits(environment=(("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),))


class GpuEngine(Engine):
    """One with paged keys and values, continuous batching and a server of its own, on the boards that it has a build for."""

    provides = frozenset({Trait.OWN_KERNELS, Trait.DIVIDES_SERVED_MODEL, Trait.SERVES_16_BITS})
    excludes: ClassVar = {Trait.FLOAT32_ARITHMETIC: "its attention kernels are of 16 bits"}
    adds = 2
    imports = ("whole_answers",)
    starts_processes = True
    checkpoint_capabilities: ClassVar[Mapping[str, str]] = {}
    """the least compute capability that it runs a method's packed weights on, where that is more than its build's"""
    bfloat16_types: ClassVar[frozenset[str]] = frozenset()
    """whose models it refuses to compute in float16"""
    unknown_types: ClassVar[frozenset[str]] = frozenset()
    """whose models it has no code of, and cannot run by Transformers': that attends by itself, or has states beside keys and values"""

    def explain_device(self, case: Case) -> str | None:
        return "its wheels are for GPUs" if case.on_cpu else explain_missing_build(self.role, case)

    def explain_model(self, case: Case) -> str | None:
        """As ``Engine``; of GPTQ's weights those that are rounded around 0 alone: Marlin's kernels (``TYPE_MAP`` of vllm 0.33's
        auto_gptq.py and of sglang 0.5.23's gptq.py)."""
        if why := super().explain_model(case):
            return why
        if case.model.model_type in self.unknown_types:
            return f"it has no code of models of type {case.model.model_type}, and theirs of Transformers takes no attention of another"
        if case.model.stored_offsets:
            return (
                "its kernels multiply GPTQ weights that are rounded around 0, and the checkpoint's are not (sym: false)"
            )
        return None

    def conflict(self, other: Technique, case: Case) -> str | None:
        if Trait.FLOAT16_ARITHMETIC in other.traits(case) and case.model.model_type in self.bfloat16_types:
            return f"{self.name} refuses models of type {case.model.model_type} in float16"
        return super().conflict(other, case)

    def list_checkpoints(self, case: Case) -> frozenset[str]:
        if case.on_cpu or explain_missing_build(self.role, case):
            return self.checkpoints
        build = list_builds(self.role)[case.vendor.choose_build(self.role, case.device, case.hardware.software.driver)]
        capability = case.device.compute_capability
        newer = {
            method
            for method, least in self.checkpoint_capabilities.items()
            if capability is not None and parse_version(capability) < parse_version(least)
        }
        run = self.checkpoints - newer
        return run if build.checkpoints is None else run.intersection(build.checkpoints)


def explain_missing_build(role: str, case: Case) -> str | None:
    """Why a stack has no build of torch for the device: a vendor without any pinned stack has none of an engine's either."""
    try:
        build = case.vendor.choose_build(role, case.device, case.hardware.software.driver)
    except UsageError as error:
        return error.message
    return None if build in list_builds(role) else f"the tested stack {role} has no build for {case.device.name}"


def drop_ones(sizes: Mapping[str, int]) -> dict[str, int]:
    """The flags of sizes that divide something."""
    return {name: size for name, size in sizes.items() if size > 1}
