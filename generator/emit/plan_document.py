"""The plan document: what plan.json holds, as a type. Templates, `why`, the smoke run and the report read nothing else.

A new key is one line here and one where ``document.py`` fills it. ``plan_json.py`` writes and reads it, and makes
``generator/plan.schema.json`` from it. GiB, seconds and tokens per second are in the names; notes on fields say the rest.
Records are compared as JSON: ``eq=False`` saves a fifth of what 30 classes cost at start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from generator.decide.notes import Note
from generator.model import ModelSpec
from generator.techniques.base import Measured, Published
from generator.techniques.edits import Argument, Edits
from hwdetect.types import Accelerator, Board, Cpu, Device, Link, Measurement, Memory, Nodes, Software

SCHEMA = 1


class Absent(Enum):
    """A field whose key the JSON does not have, whatever its type says; ``None`` is a key without a value."""

    ABSENT = "absent"

    def __bool__(self) -> bool:
        return False


ABSENT: Any = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizerRecord:
    """What AutoTokenizer reads: the model's folder or id, or the ``tokenizer`` of config.yaml; at the pinned ``revision``?"""

    source: str
    """model or config"""
    revision: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalSourceRecord:
    """A model, a tokenizer or data that is no name on the hub: ``path``, as ``key`` of config.yaml has it, and what lies there."""

    key: str
    path: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolkitRecord:
    """Libraries that torch loads as it is imported, and that no package registry has."""

    title: str
    variable: str
    """that is set where a shell knows them"""
    set_by: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExample:
    """A row of a file: the column that is read, and what it may hold."""

    column: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPart:
    """The project as a whole: what kind of scripts are written, and for what."""

    name: str
    mode: str
    task: str
    train: str
    adapter: bool
    title: str
    trainer: str
    model_class: str
    """of Transformers, which loads the model"""
    row: RowExample = ABSENT
    """what batch.py computes, where it does not answer prompts"""
    from_scratch: bool
    quantized: bool
    """whether the model's own weights are"""
    drops_packing: bool
    """whether its config.json says how published weights are packed, which new ones are not"""
    train_tokenizer: bool
    sample: bool
    hub: bool
    new_tokens: int
    tokenizer: TokenizerRecord
    data_format: str
    sft_format: str | None
    reads_end: bool = ABSENT
    """true: a classifier that answers at the end token, of which each text must have one"""
    names_no_labels: bool = ABSENT
    """true: a classifier whose forward does not name its labels, so that Trainer must be told what they are called"""
    example_leaf: str | None
    """the leaf of templates/fragments/examples that makes an example of a row"""
    data_endings: tuple[str, ...]
    """of the files in a folder of data"""
    data_words: str | None
    """what the data was recognised as, and how"""
    chat_template: bool | None
    """None: whether the tokenizer has one is seen when the project runs"""
    pad_to_multiple_of: int | None
    device: str
    """portable, or the device string of PyTorch"""
    guard: str
    """the leaf of templates/fragments/machine that compares the machine"""
    accelerator: str
    """what one device is called in a sentence"""
    hides_devices: str | None
    """the variable that hides devices from a process"""
    orders_devices: str | None
    """what must be set beside it, such as the order that both count in"""
    contained: bool
    """whether it can run in a container"""
    python: str
    """what versions of Python its packages were tested with"""
    toolkit: ToolkitRecord | None
    """what torch loads of the maker's that is no package"""
    machine: str
    summary: str
    elsewhere: bool = False
    """whether it was planned for another machine than the one that planned it"""
    sources: tuple[LocalSourceRecord, ...] = ()
    """what it needs beside itself and the hub"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceRecord(Device):
    """A catalogue entry, its sources by field, its rates to 6 digits."""

    sources: Mapping[str, str]  # ty: ignore[incompatible-attribute-override]  pairs there; nobody reads them here


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HardwareRecord:
    """The machine, less what changes from minute to minute and what names it. What was not read has no key."""

    cpu: Cpu
    memory: Memory
    boards: tuple[Board, ...]
    accelerators: tuple[Accelerator, ...]
    links: tuple[Link, ...]
    nodes: Nodes
    software: Software
    measured: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueRecord:
    """A value of the user's. ``from_`` (``from`` in the JSON): given or default; ``why``: the option, or where from."""

    value: str | int | float | bool | None
    from_: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadRecord:
    """``generator.case.workload.Workload``, each value of the user's with where it comes from."""

    mode: ValueRecord
    task: ValueRecord
    train: ValueRecord
    seq_len: ValueRecord
    global_batch: ValueRecord
    learning_rate: ValueRecord
    epochs: ValueRecord
    max_steps: ValueRecord
    warmup: ValueRecord
    weight_decay: ValueRecord
    seed: ValueRecord
    adapter: ValueRecord
    lora_rank: ValueRecord
    lora_alpha: ValueRecord
    lora_dropout: ValueRecord
    labels: ValueRecord
    new_tokens: ValueRecord
    concurrency: ValueRecord
    max_latency: ValueRecord
    from_scratch: ValueRecord
    packing: ValueRecord
    loss_on: ValueRecord
    optimize_for: ValueRecord
    steps: int | None
    fill_shares: tuple[float, ...]
    trained_share: float
    shared_tokens: int
    allow: tuple[str, ...]
    pins: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """The whole run: optimizer steps and what is paid once, without loading, saving and evaluating.

    ``usd`` is for the machine while it runs: at the price of the instance, else at the cheapest of the catalogue with such
    devices, by their number (``price_of`` says which).
    """

    summary: str
    steps: int | None
    seconds_per_1000_steps: float
    once_seconds: float
    seconds: float | None
    gpu_hours: float | None
    gpu_hours_per_1000_steps: float | None
    usd_per_hour: float | None
    usd: float | None
    usd_per_1000_steps: float | None
    price_of: str | None
    price_source: str | None
    price_read: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseRecord:
    """What was decided for."""

    device: DeviceRecord
    device_memory_bytes: int
    model: ModelSpec
    workload: WorkloadRecord
    hardware: HardwareRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostRecord:
    """What a configuration costs, in three numbers."""

    peak_memory_gib: float
    step_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateCostRecord(CostRecord):
    """The cost of a configuration with its batch split."""

    micro_batch: int
    accumulation: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRecord(CandidateCostRecord):
    """A batch split of the chosen techniques."""

    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DivisionRecord:
    """How devices are divided: ``generator.case.layout.Layout`` has the words."""

    strategy: str
    nodes: int
    per_node: int
    replicate: int
    shard: int
    tp: int
    pp: int
    cp: int
    ep: int
    at_load: bool
    sequence_form: str | None
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutRecord(DivisionRecord):
    """The chosen division."""

    of_devices: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchRecord:
    """The batch split; ``splits`` are all that were costed, up to the first that does not fit."""

    micro_batch: int
    accumulation: int
    global_batch: int
    splits: tuple[SplitRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceRecord:
    """Where a part of an estimate comes from. ``basis``: measured, published, derived or assumed."""

    basis: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimateRecord:
    """Memory of one device by part, time of one step (training) or one answer (inference) by part."""

    memory_gib: Mapping[str, float]
    peak_memory_gib: float
    peak_memory_gib_p10: float | None
    peak_memory_gib_p90: float | None
    allocator_peak_gib: float
    limit_gib: float
    headroom_gib: float
    headroom_share: float
    time_seconds: Mapping[str, float]
    step_seconds: float
    step_seconds_p10: float | None
    step_seconds_p90: float | None
    """of published runs of the kind, as interval.py weighs them; ``None`` where none was measured"""
    tokens_per_step: float
    tokens_per_second: float
    basis: str
    memory_sources: Mapping[str, SourceRecord]
    time_sources: Mapping[str, SourceRecord]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectedCostRecord(CandidateCostRecord):
    """The cost of the best plan with an alternative, or of the nearest where none fits; ``fits``: it would have run."""

    fits: bool
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RejectedRecord:
    """An alternative that was not taken; ``cost`` where it could be costed, ``changes`` what else differs in that plan."""

    name: str
    why: str
    cost: RejectedCostRecord | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionRecord:
    """One axis: what was chosen, the counterfactual that says why, and the others."""

    axis: str
    chosen: str
    open: bool
    """whether there was a choice on this machine"""
    why: str
    quality_note: str
    evidence: tuple[Published | Measured, ...]
    basis: str
    rejected: tuple[RejectedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnerUpRecord:
    """A plan with less memory. ``choice``: technique by axis; ``changes``: what differs from the chosen plan, in words."""

    choice: Mapping[str, str]
    changes: tuple[str, ...]
    estimate: CandidateCostRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceCountRecord:
    """The best plan on so many devices, whatever else changes; its figures are null where none fits.

    ``gpu_hours`` is the whole run's, null where its steps are not known, and so is every hour on a CPU.
    """

    count: int
    chosen: bool
    fits: bool
    step_seconds: float | None
    tokens_per_second: float | None
    gpu_hours: float | None
    gpu_hours_per_1000_steps: float | None
    peak_memory_gib: float | None
    micro_batch: int | None
    accumulation: int | None
    changes: tuple[str, ...]
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EditRecord:
    """An emitted keyword, setting or variable, and the axis whose technique wrote it. ``place`` is a field of ``Edits``."""

    name: str
    code: str
    why: str
    place: str
    axis: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedRecord:
    """What parallel.py compares the prepared model with, before the first step."""

    wrapper: str
    zero_stage: int = ABSENT
    shards: int = ABSENT
    sharded: str = ABSENT
    mesh: tuple[str, ...] = ABSENT
    placements: tuple[str, ...] = ABSENT
    divided: tuple[str, ...] = ABSENT
    """by a loop of its own: axes of the mesh, each with its size"""
    world_size: int
    backend: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopRecord:
    """A project with a loop of its own: the leaf that divides the model, those that divide attention, the tokens between products and
    the logits, if any, and sizes."""

    division: str
    attention: str | None
    tokens: str | None
    vocabulary: str | None
    sizes: Mapping[str, int | bool | tuple[int, ...]]
    """what ``Division`` is made with; of a pipeline the layers of each stage"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParallelRecord:
    """How several processes are started. ``deepspeed`` and ``accelerate`` are the content of their configuration files."""

    strategy: str
    nodes: int
    per_node: int
    world_size: int
    cpus_per_task: int | None
    launcher: tuple[str, ...]
    at_load: bool
    parameter_count_attribute: str | None
    """of a weight that is divided as it is loaded; ``None``: ``numel()`` counts its elements"""
    expected: ExpectedRecord
    deepspeed: Mapping[str, Any]
    accelerate: Mapping[str, Any]
    loop: LoopRecord = ABSENT
    """absent where the Trainer runs it"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchRecord:
    """How the processes of a project are started, whoever starts its nodes: every launcher's file is made of this."""

    name: str
    """of the job: letters, digits and dashes, the first a letter"""
    script: tuple[str, ...]
    """starts the processes of one node; the nodes meet at ``$MASTER_ADDR``"""
    nodes: int
    per_node: int
    command: tuple[str, ...]
    """what the script runs there"""
    environment: Mapping[str, str]
    """that it sets where nobody did before"""
    port: int | None
    """at which the nodes meet; ``None`` for one node"""
    grace_seconds: int
    """between SIGTERM and the end: for the last save, or for answers that are being written"""
    cpus: int | None
    """of one node's share; ``None``: whole nodes, whose CPUs nobody named"""
    host_gib: int
    """of one node's memory, 0 for all of it"""
    gpus: Mapping[str, int]
    """of one node, by Kubernetes' name of the resource; none on CPUs"""
    ports: Mapping[str, int]
    """of one node's fabric, likewise, where that name is the same in every cluster"""
    group_file: str | None
    """of a node: whose group may open the GPUs; ``None``: whoever is given them may"""
    memory_gib: float
    """that the processes of one node take on CPUs, predicted"""
    accelerator: str
    """the device's id in perfgen's catalogue"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserValues:
    """The user's values: never changed to gain speed."""

    mode: str
    task: str
    train: str = ABSENT
    seq_len: int
    """of inference: the tokens of a prompt"""
    global_batch: int = ABSENT
    """this and what follows to ``loss_on`` is of training"""
    learning_rate: float = ABSENT
    epochs: float = ABSENT
    """not where steps say how long"""
    max_steps: int | None = ABSENT
    warmup: float = ABSENT
    seed: int = ABSENT
    weight_decay: float = ABSENT
    loss_on: str = ABSENT
    adapter: str = ABSENT
    lora_rank: int = ABSENT
    lora_alpha: int = ABSENT
    lora_dropout: float = ABSENT
    new_tokens: int = ABSENT
    """this and what follows is of inference"""
    concurrency: int = ABSENT
    max_latency: float | None = ABSENT
    optimize_for: str | None = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingRecord:
    """How infer.py uses what a training plan trains."""

    choice: Mapping[str, str]
    estimate: EstimateRecord
    decisions: tuple[DecisionRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingConfig:
    """``training`` in config.yaml: names of TrainingArguments; train.py passes them on as they are."""

    learning_rate: float
    num_train_epochs: float
    max_steps: int
    warmup_steps: float
    weight_decay: float
    seed: int
    lr_scheduler_type: str
    logging_steps: int
    save_steps: int
    eval_strategy: str = ABSENT
    eval_steps: int = ABSENT
    eval_on_start: bool = ABSENT
    load_best_model_at_end: bool = ABSENT
    metric_for_best_model: str = ABSENT
    report_to: str = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraConfig:
    """``lora`` in config.yaml: names of peft's LoraConfig."""

    r: int
    lora_alpha: int
    lora_dropout: float
    use_dora: bool = ABSENT
    use_rslora: bool = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineConfig:
    """``machine`` in config.yaml: what the guard at the top of the scripts compares the machine with."""

    device: str
    cpus: int | None = ABSENT
    gpus: int = ABSENT
    name: str = ABSENT
    compute_capability: str | None = ABSENT
    targets: tuple[str, ...] = ABSENT
    memory_gib: float
    needs_gib: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreflightConfig:
    """``processes.preflight`` in config.yaml: what preflight.py compares with; rates are absent where none is predicted."""

    disk_gib: float
    all_reduce_gb_per_s: float = ABSENT
    node_gb_per_s: float = ABSENT
    nodes_gb_per_s: float = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessesConfig:
    """``processes`` in config.yaml: how train.py is launched, and what it must find before the first step."""

    launcher: str
    expected: ExpectedRecord
    preflight: PreflightConfig = ABSENT
    """absent for one process"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstStepRecord:
    """``first_step`` in config.yaml: what first_step.py compares the trained thing with. Dtypes are PyTorch's names."""

    trained: str
    """of the weights that are trained: the model's, or the adapters'"""
    frozen: str = ABSENT
    gradients: str = ABSENT
    """absent where none is kept"""
    states: str = ABSENT
    """of the optimizer's states"""
    device: str = ABSENT
    """absent where ``processes`` has it, or any device will do"""
    attention: str = ABSENT
    """attn_implementation; absent where nothing attends"""
    dense_mask: bool = ABSENT
    """False: attention must be called without one"""
    shared_tokens: int = ABSENT
    """that all texts of a batch begin with, computed once"""
    kernel: str = ABSENT
    """flash: SDPA must be able to take a fused kernel"""
    cached_casts: bool = ABSENT
    """False: autocast must not keep the weights that it casts"""
    experts: str = ABSENT
    """the dtype in which grouped experts are multiplied"""
    gib: Mapping[str, float]
    """on one device; parts that lie elsewhere are left out"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingConfig:
    """``serving`` in config.yaml: what the server is, and what it may be asked for. Lengths are tokens."""

    engine: str
    weights: str
    """how they are stored: float32, bfloat16, float16, fp8, int8, int4, nf4"""
    converted: str = ABSENT
    """the folder that convert.py writes; absent where the model's own files are read"""
    name: str
    """what /v1/models lists"""
    host: str
    port: int
    max_context: int
    """of one prompt with its answer"""
    max_concurrency: int
    """sequences that are computed together"""
    max_waiting: int
    """requests that may wait beside them"""
    max_new_tokens: int
    """of an answer whose request does not say"""
    prompt_tokens: int
    """that the plan was made for"""
    threads: int = ABSENT
    cache: str = ABSENT
    """of Transformers: static, rows that are allocated once; dynamic, what the model keeps of each answer by itself"""
    step: str = ABSENT
    """of Transformers: direct, products of the next token past the model's own forward pass; absent: by that"""
    proposed_tokens: int = ABSENT
    """of Transformers: before a pass, from the text itself or by the model of draft_model; absent where nothing is"""
    compile: str = ABSENT
    """mode of torch.compile for the step of one token; absent where nothing is compiled"""
    flags: Mapping[str, str | int | float | bool] = ABSENT
    """of the engine's own server, without their dashes"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowConfig:
    """``rows`` in config.yaml: how batch.py computes them where no server is emitted."""

    weights: str
    """the format that the model is loaded in"""
    batch: int
    """rows that are computed together"""
    positions: int
    """of the encoder, which the plan counts for a row; of texts the most that are read"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedConfig:
    """``predicted`` in config.yaml: of one request, and (throughput, memory) of all that the plan is for."""

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    ttft_s: float
    throughput_tokens_per_s: float
    peak_memory_gib: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConversionRecord:
    """The environment in which convert.py makes the engine's weights."""

    leaf: str
    torch: str | None
    torch_index: str
    requirements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrontierRecord:
    """So many sequences of so many tokens fit at once, over all copies."""

    context: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerRecord:
    """A serving project: its engine, what starts it, and what it may be asked for."""

    engine: str
    leaf: str
    command: tuple[str, ...]
    """of the engine's own server; none where server.py is it"""
    conversion: ConversionRecord | None
    limited_by: str
    frontier: tuple[FrontierRecord, ...]
    grace_seconds: int
    """between SIGTERM and the end of answers that are being written"""
    cpus_per_task: int | None
    """of a Slurm job; ``None``: all of whole nodes"""
    proposals: str
    """the leaf that proposes tokens to Transformers' engine, where the plan asks for any"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsConfig:
    """What the compiled graphs of a project of its own are made for.

    ``global_batch``: sequences of an optimizer step, on however many devices. ``multiple``: lengths are padded to one of it.
    ``recompute``: activations are computed again in the backward pass. ``arguments``: the plan's values of flags.
    """

    global_batch: int
    multiple: int
    recompute: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigRecord:
    """The content of config.yaml: every value that comes from outside, and of those the ones that this project reads."""

    model: str
    revision: str | None = ABSENT
    adapter: str = ABSENT
    tokenizer: str = ABSENT
    tokenizer_revision: str | None = ABSENT
    draft_model: str = ABSENT
    draft_revision: str | None = ABSENT
    data: str | None = ABSENT
    data_config: str | None = ABSENT
    data_split: str | None = ABSENT
    data_revision: str | None = ABSENT
    text_column: str | None = ABSENT
    label_column: str | None = ABSENT
    columns: Mapping[str, str] = ABSENT
    skip_bad: bool = ABSENT
    loss_on: str = ABSENT
    eval_data: str | float | None = ABSENT
    eval_rows: int | None = ABSENT
    early_stopping: int | None = ABSENT
    seq_len: int = ABSENT
    output_dir: str = ABSENT
    training: TrainingConfig = ABSENT
    graphs: GraphsConfig = ABSENT
    router_loss: float | None = ABSENT
    """weight of the loss that balances the experts of a mixture; ``None``: that of the model's config"""
    lora: LoraConfig = ABSENT
    machine: MachineConfig = ABSENT
    processes: ProcessesConfig = ABSENT
    serving: ServingConfig = ABSENT
    rows: RowConfig = ABSENT
    predicted: PredictedConfig = ABSENT
    first_step: FirstStepRecord = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavingRecord:
    """How often the Trainer saves and why: ``generator/case/saving.py``. ``time_share`` is what saves take of the run."""

    save_steps: int
    why: str
    interval_seconds: float
    checkpoint_gib: float
    disk_bytes_per_s: float
    disk_basis: str
    save_seconds: float
    time_share: float
    grace_seconds: int
    """that the last save may take after SIGTERM"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompilerRecord:
    """The commands that compile what a script runs: gcc, g++, nvcc. Empty: nothing is compiled there."""

    train: tuple[str, ...]
    infer: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageRecord:
    """What the Dockerfile builds on. ``packages`` are of its distribution; ``shm_size`` is what workers and NCCL need."""

    base: str
    torch_index: str
    engine_index: str
    """of the engine's own wheels, beside PyPI; empty: PyPI has them"""
    toolkit: bool
    """the base is NVIDIA's with the CUDA toolkit, and brings no Python of its own"""
    packages: tuple[str, ...]
    compiler_packages: tuple[str, ...]
    """what compilers need on a Debian whose Python is its own"""
    driver_packages: tuple[str, ...]
    """what the build of torch loads besides"""
    flags: tuple[str, ...]
    """of `docker run`: what reaches the devices"""
    shm_size: str
    stop_seconds: int
    """between SIGTERM and SIGKILL"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfferRecord:
    """A rented machine that meets the goal."""

    hardware: str
    cloud: str
    choice: Mapping[str, str]
    devices: int
    copies: int
    concurrency: int
    """answers at a time of each copy (inference)"""
    tokens_per_day: float
    latency_seconds: float
    peak_memory_gib: float
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    price_source: str | None
    price_read: str | None
    price_region: str | None
    spot_usd_per_hour: float | None
    spot_read: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoalRecord:
    """`plan --goal`: the target and the machines that meet it, the best first; the plan is for the first. ``ranked_by`` is what the
    best has least of: ``usd_per_hour``, ``usd_per_million_tokens``, or ``devices`` of the machine. ``concurrencies`` are the answers
    at a time that were tried, the fewest first (inference)."""

    goal: str
    ranked_by: str
    target_tokens_per_day: float | None
    max_latency_seconds: float | None
    concurrencies: tuple[int, ...]
    offers: tuple[OfferRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluationRecord:
    """What is held out, and what evaluating it costs.

    ``rows`` at most in one evaluation of ``seconds``, every ``interval`` steps, ``count`` in all (null: the number of steps is not
    known); ``share`` of the time of all steps. ``default``: nobody asked for it. ``notes`` say what differs from the usual,
    ``summary`` says it in words.
    """

    summary: str
    source: str | float
    default: bool
    rows: int
    interval: int
    count: int | None
    seconds: float
    share: float
    keeps_best: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LockRecord:
    """What `make lock` pinned."""

    image: str | None
    """the base image with its digest, ``None`` where only packages were locked"""
    requirements_sha256: str
    """of requirements.lock"""
    packages: Mapping[str, Mapping[str, str]]
    """by the marker of Python and platform: name to version"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanDocument:
    """Everything that plan.json holds and that a template may print."""

    schema: int
    perfgen: str
    project: ProjectPart
    case: CaseRecord
    choice: Mapping[str, str]
    layout: LayoutRecord
    batch: BatchRecord
    estimate: EstimateRecord
    decisions: tuple[DecisionRecord, ...]
    runners_up: tuple[RunnerUpRecord, ...]
    devices: tuple[DeviceCountRecord, ...]
    """what 1, 2, 4, … devices would give"""
    edits: Edits
    fixed: tuple[Argument, ...]
    """what train.py passes to TrainingArguments whatever the techniques: rows of ``generator/emit/fixed.py``"""
    parallel: ParallelRecord | None
    """``None`` where train.py is one process"""
    modules: Mapping[str, str]
    """plain Python files of the project, by the leaf of templates/fragments that each is copied from"""
    visible_devices: str | None
    """what ``project.hides_devices`` must be, ``None`` where all devices, or the first of them, are used"""
    provenance: tuple[EditRecord, ...]
    yours: UserValues
    defaults: Mapping[str, str]
    """names in ``yours`` that nobody gave, and where the default comes from"""
    serving: ServingRecord | None
    config: ConfigRecord
    requirements: tuple[str, ...]
    versions: Mapping[str, str]
    saving: SavingRecord | None
    """``None`` where nothing is trained"""
    compilers: CompilerRecord
    docker: ImageRecord
    files: Mapping[str, str]
    untested: tuple[str, ...]
    notes: tuple[Note, ...]
    evaluation: EvaluationRecord = ABSENT
    run: RunRecord = ABSENT
    """of a training plan"""
    server: ServerRecord = ABSENT
    """of a plan for a model that writes"""
    launch: LaunchRecord = ABSENT
    """of a project whose processes something else than a person at a terminal may start: several devices, or a server on GPUs"""
    launched: Mapping[str, str] = ABSENT
    """the YAML files in launch/, by name"""
    goal: GoalRecord = ABSENT
    request: Mapping[str, Any] = ABSENT
    """the options that were given, paths relative to the project: ``generator/emit/asked.py``"""
    lock: LockRecord = ABSENT
    """written by the project's lock.py: a plan asks no index and no registry"""
