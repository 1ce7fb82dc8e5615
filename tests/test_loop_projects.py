"""Projects with a loop of their own (tensor, pipeline, context, Ulysses, expert parallelism), run for real over gloo on this CPU.

They are planned for ``2xcpu:1`` or ``4xcpu:1`` as a user would plan them, and nothing of them is changed: losses are those of the
Trainer in one process, a killed run goes on to the same weights, and plain Transformers loads the result.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.decide.plan import Planned
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources
from generator.techniques.base import list_axes
from generator.techniques.edits import merge_edits
from generator.techniques.looped import RUN_TYPES, TENSOR_FAULTS, WHOLE_LAYERS_TYPES, Looped
from generator.techniques.parallelism.expert import MIXTURE_TYPES, Expert
from generator.techniques.parallelism.pipeline import Pipeline
from generator.techniques.traits import Trait

pytestmark = pytest.mark.slow
TEXT = Path(__file__).resolve().parents[1] / "templates/project/{% if plan.project.sample %}sample{% endif %}/text.txt"
STEPS, BATCH = 6, 8
PLAIN = {"precision": "fp32", "loss": "plain", "compile": "off", "checkpointing": "off", "data-loading": "in-process"}
SAVES = ("--save_steps", "2", "--save_total_limit", "4")
ASYNC = ("--async_save", "True")


@dataclass(frozen=True)
class Form:
    """A form on so many processes; ``divided`` are the axes that every process must find, ``pins`` what else is pinned.

    ``asked`` are fields of the request, ``words`` flags of train.py.
    """

    name: str
    processes: int
    divided: list[str]
    model: str = "dense"
    pins: dict[str, str] = field(default_factory=dict)
    tolerance: float = 1e-4
    asked: dict[str, object] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)
    """of the layout, in the place of the planned ones"""

    @property
    def id(self) -> str:
        of = [] if self.model in ("dense", "wide", "mixture") else [self.model]
        words = ["async"] if "--async_save" in self.words else []
        return "-".join(
            [self.name, str(self.processes), *of, *self.pins.values(), *map(str, self.asked.values()), *words]
        )

    @property
    def alone(self) -> str:
        """The project in one process that it is compared with."""
        return "-".join([self.model, *map(str, self.asked.values())])


SFT, LORA = {"task": "sft"}, {"task": "sft", "train": "lora"}
DORA = LORA | {"adapter": "dora"}
RECOMPUTED = {"checkpointing": "full"}
HALVES = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
TWO = (
    Form("tensor", 2, ["tp 2"]),
    Form("context", 2, ["parts 2"]),
    Form("context-fsdp2", 2, ["fsdp 2", "parts 2"]),
    Form("ulysses", 2, ["fsdp 2", "parts 2"], pins={"checkpointing": "full"}),
    Form("pipeline", 2, ["stages 2"]),
    Form("expert", 2, ["ep 2", "tp 2"], "mixture"),
    Form("expert-fsdp2", 2, ["ep 2", "fsdp 2"], "mixture"),
)
TIED = (
    Form("tensor", 2, ["tp 2"], "tied"),
    Form("context-fsdp2", 2, ["fsdp 2", "parts 2"], "tied"),
    Form("pipeline", 2, ["stages 2"], "tied"),
    Form("expert-fsdp2", 2, ["ep 2", "fsdp 2"], "tied-mixture"),
)
"""One of each family whose output layer is its embedding, of words that do not divide evenly: the others of them are in ``OTHER_WORK``."""
OF_WHOLE_EXPERTS = (("tensor", 2, ["tp 2"]), ("context", 2, ["parts 2"]), ("pipeline", 2, ["stages 2"]))
"""Forms of two processes that store float32 weights and put mixtures' experts on one device each, or divide their matrices."""
BALANCE = 0.02
BALANCED = (
    Form("tensor", 2, ["tp 2"], "balanced"),
    Form("expert", 2, ["ep 2", "tp 2"], "balanced"),
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"], "balanced", tolerance=3e-3),
    Form("expert-fsdp2", 2, ["ep 2", "fsdp 2"], "balanced", tolerance=3e-3),
)
"""With the loss of their routers. It is no sum over rows: the mean of two copies' differs from that of both together, here by 0.07
to 0.1 (Zen 5), which weighs ``BALANCE`` of that in the loss. The forms of one copy have the Trainer's."""
OTHER_WORK = (
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"], "tied"),
    Form("context", 2, ["parts 2"], "tied"),
    Form("ulysses", 2, ["fsdp 2", "parts 2"], "tied"),
    Form("pipeline-ddp", 4, ["stages 2"], "tied"),
    Form("pipeline-fsdp2", 4, ["fsdp 2", "stages 2"], "tied"),
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"], "tied"),
    Form("expert", 2, ["ep 2", "tp 2"], "tied-mixture"),
    Form("tensor", 2, ["tp 2"], asked=SFT),
    Form("tensor", 2, ["tp 2"], "untrained", asked={"from_scratch": True}),
    Form("tensor", 2, ["tp 2"], "qwen3", words=HALVES),  # its norms of heads are summed once a step
    Form("tensor", 2, ["tp 2"], "biased", pins=RECOMPUTED),  # biases are added after the sum
    Form("tensor", 2, ["tp 2"], "odd"),  # of whose words the last part has one less
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"], "odd"),
    Form("tensor", 2, ["tp 2"], asked=LORA),
    Form("tensor", 2, ["tp 2"], "tied", pins=RECOMPUTED, asked=LORA, words=HALVES),
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"], asked=LORA),
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"], pins=RECOMPUTED),
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"], pins=RECOMPUTED),
    Form("context", 2, ["parts 2"], asked=LORA),
    Form("context-fsdp2", 2, ["fsdp 2", "parts 2"], asked=SFT),
    Form("context-fsdp2", 2, ["fsdp 2", "parts 2"], asked=LORA),
    Form("ulysses", 2, ["fsdp 2", "parts 2"], asked=LORA),
    Form("pipeline", 2, ["stages 2"], asked=SFT),
    Form("pipeline", 2, ["stages 2"], asked=LORA),
    Form("pipeline", 2, ["stages 2"], "untrained", asked={"from_scratch": True}),
    Form("pipeline-fsdp2", 4, ["fsdp 2", "stages 2"], asked=LORA),
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"], "qwen3"),
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"], pins=RECOMPUTED, asked=LORA),
    *(
        Form(*form, "qwen3_moe", asked=LORA)
        for form in (
            ("context", 2, ["parts 2"]),
            ("context-fsdp2", 2, ["fsdp 2", "parts 2"]),
            ("ulysses", 2, ["fsdp 2", "parts 2"]),
            ("pipeline", 2, ["stages 2"]),
            ("pipeline-ddp", 4, ["stages 2"]),
            ("pipeline-fsdp2", 4, ["fsdp 2", "stages 2"]),
        )
    ),
    Form("context", 2, ["parts 2"], asked=DORA),
    Form("pipeline", 2, ["stages 2"], asked=DORA),
    Form("pipeline-ddp", 4, ["stages 2"], asked=DORA),
    *(
        Form(*form, kind, asked={"train": "lora"})
        for kind in ("deepseek_v3", "mixtral")
        for form in (("context-fsdp2", 2, ["fsdp 2", "parts 2"]), ("pipeline", 2, ["stages 2"]))
    ),
)
"""Other tasks and models than causal-lm of Llama."""
FOUR = (
    Form("tensor-pipeline", 4, ["stages 2", "tp 2"]),
    Form("tensor", 4, ["tp 4"], "wide"),
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"]),
    Form("context", 4, ["parts 2"]),  # and two copies
    Form("pipeline", 4, ["stages 4"]),
    Form("pipeline-ddp", 4, ["stages 2"]),
    Form("pipeline-fsdp2", 4, ["fsdp 2", "stages 2"], pins={"checkpointing": "full"}),
    Form("expert-fsdp2", 4, ["ep 4", "fsdp 4"], "mixture"),
)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "router_aux_loss_coef": 0.0}
"""Without the loss that balances them, which is of all rows and layers at once: ``BALANCED`` have it."""
TYPES: dict[str, dict[str, object]] = {
    "deepseek_v3": {
        **EXPERTS,
        **{"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
        **{"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
        "num_key_value_heads": 4,
    },
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64},  # as long as the rows
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "mistral": {"head_dim": 16},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "router_aux_loss_coef": 0.0},
    "olmo2": {},
    "phi3": {"pad_token_id": 0},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "head_dim": 16},
    "smollm3": {"pad_token_id": 0},
}
"""Sizes of each model type that forms are said to be run with, where they are not those of ``SIZES``, besides Llama."""
OF_ALL = (
    ("tensor", 2, ["tp 2"]),
    ("context-fsdp2", 2, ["fsdp 2", "parts 2"]),
    ("ulysses", 2, ["fsdp 2", "parts 2"]),
    ("pipeline", 2, ["stages 2"]),
    ("tensor-pipeline", 4, ["stages 2", "tp 2"]),
)
OF_MIXTURES = (
    ("tensor-fsdp2", 4, ["fsdp 2", "tp 2"]),
    ("pipeline-fsdp2", 4, ["fsdp 2", "stages 2"]),
    ("expert", 2, ["ep 2", "tp 2"]),
    ("expert-fsdp2", 2, ["ep 2", "fsdp 2"]),
)
OTHER_TYPES = tuple(
    Form(*one, kind)
    for kind in TYPES
    for one in (*OF_ALL, *(OF_MIXTURES if kind in MIXTURE_TYPES else ()))
    if (kind in RUN_TYPES or "pipeline" not in one[0]) and (kind not in TENSOR_FAULTS or "tensor" not in one[0])
)
"""The model types that the forms are said to be run with (generator/techniques/looped.py), besides Llama."""
EIGHT = (
    Form("tensor-pipeline", 8, ["fsdp 2", "stages 2", "tp 2"]),
    Form("tensor-pipeline", 8, ["fsdp 2", "stages 2", "tp 2"], "qwen3"),
    Form("tensor-pipeline", 8, ["fsdp 2", "stages 2", "tp 2"], "tied", asked=LORA),
    Form("tensor-pipeline", 8, ["stages 4", "tp 2"], "tied", sizes={"pp": 4, "shard": 1}),
)
OTHER_KILLED = (
    *(("tensor", SFT), ("pipeline", SFT), ("context-fsdp2", SFT)),
    *(
        ("tensor", LORA),
        ("tensor-fsdp2", LORA),
        ("context", LORA),
        ("context-fsdp2", LORA),
        ("ulysses", LORA),
        ("pipeline", LORA),
        ("pipeline-fsdp2", LORA),
        ("tensor-pipeline", LORA),
    ),
)
"""Of a loss on answers alone, and of adapters: those have no other weights in their checkpoints."""
KILLS = ((1, 1, "step"), (0, 2, "written"), (1, 4, "save"), (0, 6, "step"))
"""One after the other, of one run that saves every second step: nothing saved, parts without a seal, an unfinished part, the
last step."""
KILLED_OFTEN = (
    *{form.name: form for form in (*FOUR, *TWO)}.values(),
    *(form for form in OTHER_WORK if (form.name, form.asked) in OTHER_KILLED and form.model not in MIXTURE_TYPES),
    Form("context-fsdp2", 2, ["fsdp 2", "parts 2"], "qwen3_moe", asked=LORA),
    Form("pipeline", 2, ["stages 2"], asked=DORA),
    Form("context", 2, ["parts 2"], asked=LORA | {"lora_dropout": 0.1}),
    Form("pipeline", 2, ["stages 2"], asked=LORA | {"lora_dropout": 0.1}),
    Form("tensor-fsdp2", 4, ["fsdp 2", "tp 2"], words=ASYNC),
    Form("pipeline", 2, ["stages 2"], words=ASYNC),
    Form("expert-fsdp2", 2, ["ep 2", "fsdp 2"], "mixture", words=ASYNC),
)
KILLED = (
    ("tensor", 2, (1, 4, "step"), ()),
    ("pipeline", 2, (0, 4, "save"), ()),
    ("context-fsdp2", 2, (1, 4, "written"), ASYNC),
)
BOTH_KILLED = (
    ("tensor", ((0, 4, "parts"), (1, 4, "inside")), (), 2),
    ("pipeline", ((0, 4, "inside"), (1, 4, "parts")), (), 2),
    ("context-fsdp2", ((0, 6, "step"), (1, 4, "slow")), ASYNC, 2),
    ("tensor", ((0, 4, "sealed"), (1, 4, "late")), (), 4),
    ("ddp", ((0, 4, "parts"), (1, 4, "inside")), (), 2),
    ("ddp", ((0, 4, "sealed"), (1, 4, "late")), (), 4),
)
"""Where each of two processes is killed, which has come further than the other, and the newest complete checkpoint then."""
RESHARDED = (
    ("tensor-fsdp2", 4, "tensor", 2, "dense"),
    ("ddp", 2, "single", 1, "dense"),
    *(("ddp", 4, "ddp", 2, "dense"), ("single", 1, "ddp", 2, "dense"), ("tensor", 2, "tensor", 4, "wide")),
    *((form, 2, form, 4, "dense") for form in ("context", "context-fsdp2", "ulysses", "pipeline")),
    *(("pipeline", 4, "pipeline", 2, "dense"), ("pipeline-fsdp2", 4, "tensor", 2, "dense")),
    *(("context-fsdp2", 2, "tensor-fsdp2", 4, "dense"), ("tensor", 2, "context", 2, "dense")),
    *(("expert-fsdp2", 4, "expert", 2, "mixture"), ("expert", 2, "expert-fsdp2", 4, "mixture")),
)
"""(form, processes) of the first steps, and of those after them; the model."""


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Path:
    """Tiny models with one tokenizer, and some text."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    folder = tmp_path_factory.mktemp("inputs")
    text = TEXT.read_text(encoding="utf-8")[:60000]
    (folder / "data.txt").write_text(text, encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    chats = [
        {"messages": [{"role": "user", "content": asked[:40]}, {"role": "assistant", "content": answer[: 20 + n % 60]}]}
        for n, (asked, answer) in enumerate(pairwise(lines))
    ]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats[:300])), encoding="utf-8")
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    bpe.train_from_iterator([text], BpeTrainer(vocab_size=512, special_tokens=["<e>"], initial_alphabet=alphabet))
    words = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<e>", eos_token="<e>", pad_token="<e>")
    mixture = SIZES | EXPERTS | {"num_experts": 8, "head_dim": 16, "num_hidden_layers": 2}
    torch.manual_seed(0)
    models = {
        "dense": LlamaForCausalLM(LlamaConfig(**SIZES)),
        "tied": LlamaForCausalLM(LlamaConfig(**SIZES | {"tie_word_embeddings": True, "vocab_size": 515})),
        "untrained": LlamaForCausalLM(LlamaConfig(**SIZES)),
        "biased": LlamaForCausalLM(LlamaConfig(**SIZES | {"attention_bias": True, "mlp_bias": True})),
        "odd": LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": 515})),
        "wide": LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 4})),
        "mixture": Qwen3MoeForCausalLM(Qwen3MoeConfig(**mixture)),
        "balanced": Qwen3MoeForCausalLM(Qwen3MoeConfig(**mixture | {"router_aux_loss_coef": BALANCE})),
        "tied-mixture": Qwen3MoeForCausalLM(
            Qwen3MoeConfig(**mixture | {"tie_word_embeddings": True, "vocab_size": 515})
        ),
    }
    for kind, more in TYPES.items():
        models[kind] = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | more))
    for name, model in models.items():
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    return folder


def make(
    inputs: Path,
    folder: Path,
    form: str,
    processes: int | str,
    model: str,
    asked: dict | None = None,
    sizes: dict | None = None,
    hardware: str | None = None,
    **pins: str,
) -> Path:
    """A project for processes of this CPU, or of two nodes (``2x1``), or for other ``hardware``."""
    asked = asked or {}
    sft = asked.get("task") == "sft"
    plain = {name: value for name, value in PLAIN.items() if not (sft and processes == 1 and name == "loss")}
    request = Request(
        model=str(inputs / model),
        data=str(inputs / ("chats.jsonl" if sft else "data.txt")),
        hardware=hardware
        or ("cpu:1" if processes == 1 else f"{processes}xcpu:1") + ("+bf16" if pins.get("precision") == "bf16" else ""),
        seq_len=64,
        global_batch=BATCH,
        max_steps=STEPS,
        learning_rate=1e-3,
        eval="0.02",
        offline=True,
        pins=tuple((plain | {"parallelism": form} | pins).items()),
        **asked,
    )
    planned = pipeline.plan_request(request)
    if sizes:
        planned = change_layout(planned, sizes)
    folder.mkdir(parents=True)
    render.render(to_json(build_document(planned, name=folder.name)), folder)
    link_sources(place_sources(planned.work, folder), folder)
    return folder


def change_layout(planned: Planned, sizes: dict[str, int]) -> Planned:
    """The plan with other sizes of its axes and the same global batch: of several layouts that a form has only one is planned."""
    plan, before = planned.plan, planned.plan.best.layout
    layout = replace(before, **sizes)
    run = plan.best.execution
    execution = replace(
        run,
        accumulation=run.accumulation * run.dp // layout.dp,
        **{name: getattr(layout, name) for name in ("dp", "tp", "pp", "cp", "ep")},
    )
    case, best = replace(plan.case, layout=layout), replace(plan.best, layout=layout, execution=execution)
    edits = merge_edits([(t.id, t.edits(case)) for t in best.members])
    return replace(planned, plan=replace(plan, case=case, best=best, edits=edits))


def make_form(inputs: Path, folder: Path, form: Form) -> Path:
    return make(inputs, folder, form.name, form.processes, form.model, form.asked, form.sizes, **form.pins)


def run_all(folder: Path, runs: list[dict], variables: dict[str, str] | None = None) -> list[dict]:
    """One after the other, in forks of one process. ``codes`` of each one's processes, whether it ``finished``, and whether it was
    ended because it was ``too_late``."""
    plan = folder / "runs.json"
    plan.write_text(json.dumps(runs))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "PYTHONPATH": ""}
    environment |= variables or {}
    script = Path(__file__).with_name("loop_processes.py")
    subprocess.run([sys.executable, str(script), str(plan)], env=environment, check=True, timeout=120 + 300 * len(runs))
    return json.loads((folder / "ended.json").read_text())


def describe_run(folder: Path, processes: int, *words: str, kill: tuple | None = None, kills: tuple = ()) -> dict:
    kills = (kill,) if kill else kills
    return {"folder": str(folder), "processes": processes, "words": list(words), "kills": kills}


def train(inputs: Path, folder: Path, forms: tuple[Form, ...], more=lambda made: []) -> dict[str, Path]:
    """Every form, and each of its models in one process by the Trainer; ``more`` runs for the projects made."""
    made: dict[str, Path] = {}
    for form in forms:
        if form.alone not in made:
            made[form.alone] = make(inputs, folder / form.alone, "single", 1, form.model, form.asked)
    runs = [describe_run(project, 1) for project in made.values()]
    for form in forms:
        made[form.id] = make_form(inputs, folder / form.id, form)
        runs.append(describe_run(made[form.id], form.processes, *form.words))
    run_all(folder, runs + more(made))
    return made


@pytest.fixture(scope="session")
def two(inputs, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("two")
    return train(inputs, folder, (*TWO, *TIED), partial(list_killed, inputs, folder))


def list_killed(inputs: Path, folder: Path, made: dict[str, Path]) -> list[dict]:
    runs = []
    for form, processes, kill, words in KILLED:
        name = f"{form}-killed"
        made[name] = make(inputs, folder / name, form, processes, "dense")
        words = (*SAVES, *words)
        runs += [describe_run(made[name], processes, *words, kill=kill), describe_run(made[name], processes, *words)]
    return runs


@pytest.fixture(scope="session")
def four(inputs, tmp_path_factory) -> dict[str, Path]:
    return train(inputs, tmp_path_factory.mktemp("four"), FOUR)


def read_gradient_norms(project: Path) -> list[float]:
    """Of each step, before it is clipped, as the first process prints it."""
    return [float(norm) for norm in re.findall(r"\bgrad ([\d.e+-]+)", (project / "log-0").read_text())]


def read_report(project: Path) -> dict:
    logs = "".join(path.read_text(errors="replace")[-3000:] for path in sorted(project.glob("log-*")))
    assert (project / "runs/run.json").exists(), logs
    return json.loads((project / "runs/run.json").read_text())


def check_form(form: Form, made: dict[str, Path]) -> None:
    project, alone = made[form.id], read_report(made[form.alone])
    report = read_report(project)
    assert json.loads((project / "codes.json").read_text()) == [0] * form.processes
    assert report["losses"] == pytest.approx(alone["losses"], abs=form.tolerance)
    norms, expected = read_gradient_norms(project), read_gradient_norms(made[form.alone])
    assert len(norms) == STEPS  # AdamW forgives gradients that are some times too large: losses would be the same
    assert norms == pytest.approx(expected, rel=0.01)  # three digits are printed
    pairs = zip(report["evaluations"], alone["evaluations"], strict=True)
    assert all(row["loss"] == pytest.approx(other["loss"], abs=form.tolerance) for row, other in pairs)
    assert report["processes"] == form.processes and report["tokens_per_step"] == alone["tokens_per_step"]
    assert report["run"]["trained parameters"] == alone["run"]["trained parameters"]
    assert (project / "runs/first_example.txt").read_text() == (made[form.alone] / "runs/first_example.txt").read_text()
    output = (project / "log-0").read_text()
    assert f"divided {form.divided}" in output and "as planned: trained float32" in output
    assert (project / "runs/first_example.txt").exists() and (project / "runs/loss.svg").exists()
    compare_models(project, made[form.alone])


def compare_models(one: Path, other: Path, *, exactly: bool = False) -> None:
    """As plain Transformers loads them, whatever wrote them."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    files = [path / "runs/adapter_model.safetensors" for path in (one, other)]
    if all(file.exists() for file in files):
        found, expected = map(load_file, files)
        compare_weights(found, expected, exactly=exactly)
        if any(
            "lora_magnitude_vector" in name for name in found
        ):  # Transformers 5.23 does not find DoRA's in PEFT's file
            return
    found, expected = (AutoModelForCausalLM.from_pretrained(path / "runs").state_dict() for path in (one, other))
    adapters = {name: weight for name, weight in expected.items() if "lora" in name}
    assert (one / "runs/adapter_config.json").exists() == bool(adapters)
    compare_weights(found, expected, exactly=exactly)


def compare_weights(found: dict, expected: dict, *, exactly: bool) -> None:
    import torch

    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], atol=0 if exactly else 2e-4, rtol=0)


def count_seeds(project: Path) -> int:
    """Different random numbers that the processes of a run draw for their dropout."""
    import torch

    newest = max(project.glob("runs/checkpoint-*"), key=lambda path: int(path.name[11:]))
    return len(
        {torch.load(path, weights_only=False)["cpu"].numpy().tobytes() for path in newest.glob("rng_state_*.pth")}
    )


@pytest.mark.core
@pytest.mark.parametrize("form", (*TWO, *TIED), ids=lambda form: form.id)
def test_two_processes_have_the_losses_of_one(two, form):
    check_form(form, two)


@pytest.mark.core
@pytest.mark.parametrize(("form", "processes", "kill", "words"), KILLED, ids=lambda value: str(value))
def test_a_killed_run_goes_on_to_the_same_weights(two, form, processes, kill, words):
    """One process ends by SIGKILL in a step, or while it saves: the run goes on from the checkpoint before."""
    project = two[f"{form}-killed"]
    report, whole = read_report(project), read_report(two[Form(form, processes, []).id])
    assert report["resumed_from"] == 2
    assert count_seeds(project) == (1 if form == "tensor" else processes)
    assert report["losses"] == pytest.approx(whole["losses"], abs=1e-6)
    compare_models(project, two[Form(form, processes, []).id])


@pytest.mark.slow
def test_a_stopped_run_saves_and_goes_on_to_the_same_weights(inputs, tmp_path):
    """SIGTERM to all processes: all save after that step, which no save was planned behind, and nothing of it is lost."""
    forms = Form("tensor", 2, ["tp 2"]), Form("pipeline", 2, ["stages 2"])

    def list_stopped(made: dict[str, Path]) -> list[dict]:
        runs = []
        for form in forms:
            project = made[f"{form.id}-stopped"] = make_form(inputs, tmp_path / f"{form.id}-stopped", form)
            runs.append(describe_run(project, 2, *SAVES, kill=(0, 3, "stop")))
        return runs

    made = train(inputs, tmp_path, forms, list_stopped)
    for form in forms:
        project = made[f"{form.id}-stopped"]
        assert "stopped by SIGTERM after step 3" in (project / "log-0").read_text()
        assert (project / "runs/checkpoint-3/complete.json").exists()
        run_all(tmp_path, [describe_run(project, 2, *SAVES)])
        report, whole = read_report(project), read_report(made[form.id])
        assert report["resumed_from"] == 3
        assert report["losses"] == pytest.approx(whole["losses"], abs=1e-6)
        compare_models(project, made[form.id])


@pytest.mark.parametrize("kind", TYPES)
def test_other_types_of_models_have_the_losses_of_one_process(inputs, tmp_path, kind):
    forms = tuple(form for form in OTHER_TYPES if form.model == kind)
    made = train(inputs, tmp_path, forms)
    for form in forms:
        check_form(form, made)


@pytest.mark.parametrize("form", FOUR, ids=lambda form: form.id)
def test_four_processes_have_the_losses_of_one(four, form):
    check_form(form, four)


@pytest.fixture(scope="session")
def others(inputs, tmp_path_factory) -> dict[str, Path]:
    return train(inputs, tmp_path_factory.mktemp("others"), OTHER_WORK)


@pytest.mark.parametrize("form", OTHER_WORK, ids=lambda form: form.id)
def test_other_work_has_the_losses_of_one_process(others, form):
    check_form(form, others)


def test_experts_are_balanced_as_by_the_trainer(inputs, tmp_path):
    """Losses, which have the routers' in them, evaluations, which have not, and the mean that is logged."""
    made = train(inputs, tmp_path, BALANCED)
    alone = read_balance(made["balanced"])
    assert len(alone) == STEPS and min(alone) > 1
    for form in BALANCED:
        report, whole = read_report(made[form.id]), read_report(made[form.alone])
        assert report["losses"] == pytest.approx(whole["losses"], abs=form.tolerance)
        pairs = zip(report["evaluations"], whole["evaluations"], strict=True)
        assert all(row["loss"] == pytest.approx(other["loss"], abs=form.tolerance) for row, other in pairs)
        assert read_gradient_norms(made[form.id]) == pytest.approx(read_gradient_norms(made["balanced"]), rel=0.02)
        assert read_balance(made[form.id]) == pytest.approx(alone, abs=form.tolerance / BALANCE)


def read_balance(project: Path) -> list[float]:
    """``aux_loss`` of each step, as the newest checkpoint has it."""
    newest = max(project.glob("runs/checkpoint-*"), key=lambda path: int(path.name[11:]))
    history = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    return [row["aux_loss"] for row in history if "aux_loss" in row]


@pytest.mark.parallel
def test_eight_processes_have_the_losses_of_one(inputs, tmp_path):
    made = train(inputs, tmp_path, EIGHT)
    for form in EIGHT:
        check_form(form, made)


@pytest.mark.parallel
@pytest.mark.parametrize("form", KILLED_OFTEN, ids=lambda form: form.id)
def test_four_kills_in_a_row(inputs, tmp_path, form):
    """By SIGKILL of one process each time. Every form ends with the weights of a run that nothing disturbed."""
    project, whole = (make_form(inputs, tmp_path / name, form) for name in ("killed", "whole"))
    kills = [(rank * (form.processes - 1), step, where) for rank, step, where in KILLS]
    runs = [describe_run(project, form.processes, *SAVES, *form.words, kill=kill) for kill in (*kills, None)]
    *killed, last = run_all(tmp_path, [describe_run(whole, form.processes, *form.words), *runs])[1:]
    for kill, ended in zip(kills, killed, strict=True):
        assert ended["codes"][kill[0]] == -signal.SIGKILL and not ended["finished"] and not ended["too_late"], kill
    assert last["codes"] == [0] * form.processes
    ways = sum(int(axis[3:]) for axis in form.divided if axis.startswith("tp ")) or 1
    assert count_seeds(project) == form.processes // ways
    report = read_report(project)
    newest = (2, 4) if form.words == ASYNC else (4,)  # a step may be faster than what is written
    assert report["resumed_from"] in newest
    assert report["losses"] == pytest.approx(read_report(whole)["losses"], abs=1e-6)
    compare_models(project, whole, exactly=True)
    assert [len(list(project.glob(f"runs/checkpoint-*/{name}"))) for name in ("complete.json", "unfinished.txt")] == [
        3,
        0,
    ]


def test_two_processes_that_are_killed_at_different_points_go_on_from_one_checkpoint(inputs, tmp_path):
    """One inside a save, the other in it too, behind it, or steps later: the newest checkpoint that is complete, on both."""
    runs = []
    for number, (form, kills, words, _) in enumerate(BOTH_KILLED):
        project, whole = tmp_path / str(number), tmp_path / form
        if not whole.exists():
            runs.append(describe_run(make(inputs, whole, form, 2, "dense"), 2))
        make(inputs, project, form, 2, "dense")
        runs += [describe_run(project, 2, *SAVES, *words, kills=kills), describe_run(project, 2, *SAVES, *words)]
    ended = {(run["folder"], bool(run["kills"])): end for run, end in zip(runs, run_all(tmp_path, runs), strict=True)}
    for number, (form, kills, _, newest) in enumerate(BOTH_KILLED):
        project = tmp_path / str(number)
        killed, resumed = (ended[str(project), is_killed] for is_killed in (True, False))
        assert killed["codes"] == [-signal.SIGKILL] * 2 and not killed["finished"] and not killed["too_late"], kills
        assert resumed["codes"] == [0, 0], (kills, (project / "log-0").read_text()[-3000:])
        assert read_report(project)["resumed_from"] == newest, kills
        assert read_report(project)["losses"] == pytest.approx(read_report(tmp_path / form)["losses"], abs=1e-6)
        compare_models(project, tmp_path / form, exactly=True)


def check_resharding(inputs: Path, folder: Path, before: str, count: int, after: str, other: int, model: str) -> None:
    """Killed after step 4; planned anew for another number of processes or another form, which divide the parts anew."""
    whole = make(inputs, folder / "whole", after, other, model)
    first = make(inputs, folder / "first", before, count, model)
    second = make(inputs, folder / "second", after, other, model)
    (second / "runs").symlink_to(first / "runs")
    run_all(
        folder,
        [
            describe_run(whole, other),
            describe_run(first, count, *SAVES, kill=(count - 1, 5, "step")),
            describe_run(second, other, *SAVES),
        ],
    )
    report = read_report(second)
    assert report["resumed_from"] == 4
    assert "the best model is that" not in (second / "log-0").read_text()  # evaluations are of the same rows
    assert report["losses"] == pytest.approx(read_report(whole)["losses"], abs=1e-4)
    compare_models(second, whole)


@pytest.mark.parametrize(("before", "count", "after", "other", "model"), RESHARDED[:2])
def test_another_number_of_processes_goes_on(inputs, tmp_path, before, count, after, other, model):
    check_resharding(inputs, tmp_path, before, count, after, other, model)


@pytest.mark.parallel
@pytest.mark.parametrize(("before", "count", "after", "other", "model"), RESHARDED[2:])
def test_another_form_goes_on(inputs, tmp_path, before, count, after, other, model):
    check_resharding(inputs, tmp_path, before, count, after, other, model)


MASKED = """
import transformers
from transformers.trainer_callback import CallbackHandler

collate, end, late = transformers.default_data_collator, CallbackHandler.on_step_end, []


def on_step_end(handler, args, state, control):
    late.extend([1] * (state.global_step == 2))
    return end(handler, args, state, control)


def default_data_collator(rows):
    batch = collate(rows)
    if late:
        batch["labels"][:] = -100
    return batch


CallbackHandler.on_step_end, transformers.default_data_collator = on_step_end, default_data_collator
"""


def test_rows_that_are_trained_beside_adapters_are_one_on_the_stages_that_share_them(inputs, tmp_path):
    """Of a tied embedding the first stage trained its rows, and the last one others, of which one copy was saved."""
    rows, runs = "\n  trainable_token_indices: [20, 21, 22]", []
    for name, form, count in (("alone", "single", 1), ("stages", "pipeline", 2)):
        project = make(inputs, tmp_path / name, form, count, "tied", LORA)
        config = (project / "config.yaml").read_text()
        (project / "config.yaml").write_text(config.replace("\nlora:", f"\nlora:{rows}"))
        runs.append(describe_run(project, count, "--max_grad_norm", "0.1"))
    ended = run_all(tmp_path, runs)
    assert [run["codes"] for run in ended] == [[0], [0, 0]], (tmp_path / "stages/log-0").read_text()
    alone, stages = (read_report(tmp_path / name) for name in ("alone", "stages"))
    assert stages["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert stages["eval"]["after"]["loss"] == pytest.approx(alone["eval"]["after"]["loss"], rel=1e-4)


def test_a_step_that_learns_nothing_ends_the_run_in_words(inputs, tmp_path):
    """0 / 0 would be in every weight after it. In the loop all processes end before the step; Trainer sees it at the next log."""
    forms = {"single": 1, "tensor": 2, "pipeline": 2, "context": 2}
    runs = []
    for form, count in forms.items():
        project = make(inputs, tmp_path / form, form, count, "dense")
        text = (project / "train.py").read_text()
        assert "default_data_collator" in text
        (project / "train.py").write_text(f"import masked\n{text}")
        (project / "masked.py").write_text(MASKED)
        runs.append(describe_run(project, count, *SAVES, "--logging_steps", "1"))
    for (form, count), ended in zip(forms.items(), run_all(tmp_path, runs), strict=True):
        output = (tmp_path / form / "log-0").read_text()
        assert ended["codes"] == [1] * count and not ended["finished"], output
        said = "non-finite loss (nan)" if form == "single" else "step 3: all labels of its rows are -100"
        assert said in output, output
        kept = [path.parent.name for path in (tmp_path / form).glob("runs/checkpoint-*/complete.json")]
        assert kept == ["checkpoint-2"]


SLOW_WRITE = """
import time

import torch.distributed.checkpoint as dcp

save = dcp.save


def write(*args, **kwargs):
    time.sleep(3)
    return save(*args, **kwargs)


dcp.save = write
"""


def test_a_step_that_learns_nothing_leaves_the_checkpoint_before_it_that_is_being_written(inputs, tmp_path):
    """It had no seal: the next start left it out."""
    project = make(inputs, tmp_path / "masked", "pipeline", 2, "dense")
    (project / "masked.py").write_text(MASKED + SLOW_WRITE)
    (project / "train.py").write_text(f"import masked\n{(project / 'train.py').read_text()}")
    (ended,) = run_all(tmp_path, [describe_run(project, 2, *SAVES, *ASYNC)])
    output = (project / "log-0").read_text()
    assert ended["codes"] == [1, 1] and "step 3: all labels of its rows are -100" in output, output
    assert [path.parent.name for path in project.glob("runs/checkpoint-*/complete.json")] == ["checkpoint-2"]


def test_a_model_that_is_not_divided_is_an_error(inputs, tmp_path):
    """Every process would train all of it, with the right losses."""
    project = make(inputs, tmp_path / "whole", "tensor", 2, "dense")
    division = (project / "division.py").read_text()
    given = "source, distributed_config=self.config, output_loading_info=True"
    assert given in division
    (project / "division.py").write_text(division.replace(given, "source, output_loading_info=True"))
    text = (project / "train.py").read_text()
    for name in ("tokens=TokenParts()", "vocabulary=VocabularyParts"):
        assert name in text
        text = text.replace(name, name.partition("=")[0] + "=None")
    (project / "train.py").write_text(text)
    (ended,) = run_all(tmp_path, [describe_run(project, 2)])
    output = (project / "log-0").read_text()
    assert ended["codes"] == [1, 1] and not ended["finished"], output
    assert "does not train as planned" in output and "divided: [], not ['tp 2']" in output


def test_rows_that_tensor_parts_cannot_divide_end_the_run_in_words(inputs, tmp_path):
    """A seq_len that was set in config.yaml: parts of two lengths would be gathered as if they were as long."""
    forms = {"tensor": 2, "tensor-pipeline": 4}
    for form, count in forms.items():
        config = make(inputs, tmp_path / form, form, count, "dense") / "config.yaml"
        assert "seq_len: 64" in config.read_text()
        config.write_text(config.read_text().replace("seq_len: 64", "seq_len: 63"))
    ended = run_all(tmp_path, [describe_run(tmp_path / form, count) for form, count in forms.items()])
    for form, run in zip(forms, ended, strict=True):
        output = (tmp_path / form / "log-0").read_text()
        assert not run["finished"] and run["codes"][:2] == [1, 1], output
        assert "2 processes cannot divide rows of 63 tokens: set another seq_len" in output, output


BEST_IS_2 = """
import time

import torch.distributed.checkpoint as dcp
from transformers.trainer_callback import CallbackHandler

save, end = dcp.save, CallbackHandler.on_evaluate


def write(*args, **kwargs):
    time.sleep(5)
    return save(*args, **kwargs)


def on_evaluate(handler, args, state, control, metrics):
    metrics["eval_loss"] = 5.0 + abs(state.global_step - 2)
    return end(handler, args, state, control, metrics)


dcp.save, CallbackHandler.on_evaluate = write, on_evaluate
"""


def test_a_run_that_is_stopped_early_keeps_its_best_model_that_is_being_written(inputs, tmp_path):
    """A disk so slow that the evaluation behind the best model asks for one more checkpoint before that one is there."""
    runs = []
    for name, words in (("waits", ()), ("async", ASYNC)):
        project = make(inputs, tmp_path / name, "pipeline", 2, "dense")
        (project / "slow.py").write_text(BEST_IS_2)
        (project / "train.py").write_text(f"import slow\n{(project / 'train.py').read_text()}")
        config = (project / "config.yaml").read_text()
        assert "early_stopping: null" in config
        (project / "config.yaml").write_text(config.replace("early_stopping: null", "early_stopping: 1"))
        runs.append(describe_run(project, 2, "--eval_steps", "1", "--save_steps", "2", *words))
    ended = run_all(tmp_path, runs)
    output = (tmp_path / "async/log-0").read_text()
    assert [run["codes"] for run in ended] == [[0, 0], [0, 0]], output
    assert "step 3: stopped early" in output and "is not as it was saved" not in output
    sealed = sorted(path.parent.name for path in (tmp_path / "async").glob("runs/checkpoint-*/complete.json"))
    assert sealed == ["checkpoint-2", "checkpoint-3"]
    compare_models(tmp_path / "async", tmp_path / "waits", exactly=True)


STOPPED_IN_EVALUATION = """
import os
import signal
import time
from pathlib import Path

import torch.distributed.checkpoint as dcp
from transformers.trainer_callback import CallbackHandler

save, end = dcp.save, CallbackHandler.on_prediction_step


def write(*args, **kwargs):
    time.sleep(3)
    return save(*args, **kwargs)


def on_prediction_step(handler, args, state, control):
    if state.global_step == 4 and args.process_index == 1 and not Path("runs/checkpoint-4").exists():
        os.kill(os.getpid(), signal.SIGTERM)
    return end(handler, args, state, control)


dcp.save, CallbackHandler.on_prediction_step = write, on_prediction_step
"""


def test_an_evaluation_that_a_signal_to_one_process_ends_is_made_when_the_run_goes_on(inputs, tmp_path):
    """All save the step behind it, which no save was planned for, and wait for the checkpoint that is being written."""
    words, runs = ("--eval_steps", "2", "--save_steps", "3", "--save_total_limit", "4"), []
    for name, more in (("whole", ""), ("stopped", "import stopped\n")):
        project = make(inputs, tmp_path / name, "tensor", 2, "dense")
        (project / "stopped.py").write_text(STOPPED_IN_EVALUATION)
        (project / "train.py").write_text(f"{more}{(project / 'train.py').read_text()}")
        runs.append(describe_run(project, 2, *words, *ASYNC))
    ended = run_all(tmp_path, [*runs, runs[1]])
    output = (tmp_path / "stopped/log-0").read_text()
    assert [run["codes"] for run in ended] == [[0, 0], [143, 143], [0, 0]], output
    assert (tmp_path / "stopped/runs/checkpoint-3/complete.json").exists()
    reports = [read_report(tmp_path / name) for name in ("whole", "stopped")]
    losses = [[(row["step"], row["loss"]) for row in report["evaluations"]] for report in reports]
    assert losses[0] == losses[1] and reports[1]["resumed_from"] == 4
    compare_models(tmp_path / "stopped", tmp_path / "whole", exactly=True)


BAD_STEP_5 = """
import time

import torch.distributed.checkpoint as dcp
from transformers.trainer_callback import CallbackHandler

save, log = dcp.save, CallbackHandler.on_log


def write(*args, **kwargs):
    time.sleep(3)
    return save(*args, **kwargs)


def on_log(handler, args, state, control, logs):
    return log(handler, args, state, control, logs | ({"loss": float("nan")} if state.global_step == 5 else {}))


dcp.save, CallbackHandler.on_log = write, on_log
"""


def test_a_loss_that_is_no_number_leaves_the_checkpoint_before_it_that_is_being_written(inputs, tmp_path):
    project = make(inputs, tmp_path / "bad", "pipeline", 2, "dense")
    (project / "bad.py").write_text(BAD_STEP_5)
    (project / "train.py").write_text(f"import bad\n{(project / 'train.py').read_text()}")
    (ended,) = run_all(tmp_path, [describe_run(project, 2, *SAVES, *ASYNC)])
    output = (project / "log-0").read_text()
    assert ended["codes"] == [1, 1] and "step 5: non-finite loss (nan). Earlier checkpoints are good" in output
    sealed = sorted(path.parent.name for path in project.glob("runs/checkpoint-*/complete.json"))
    assert sealed == ["checkpoint-2", "checkpoint-4"]


def test_a_loss_of_routers_is_refused(inputs, tmp_path):
    """Of a part of the layers, or of the tokens, it would be left out, or another one."""
    for form in ("pipeline", "context"):
        project = make(inputs, tmp_path / form, form, 2, "qwen3_moe")
        source = tmp_path / f"{form}-model"
        shutil.copytree(inputs / "qwen3_moe", source)
        config = json.loads((source / "config.json").read_text()) | {"output_router_logits": True}
        (source / "config.json").write_text(json.dumps(config))
        text = (project / "config.yaml").read_text()
        (project / "config.yaml").write_text(re.sub("(?m)^model: .*$", f"model: {source}", text))
        (ended,) = run_all(tmp_path, [describe_run(project, 2)])
        assert ended["codes"] == [1, 1] and not ended["finished"]
        assert "computes no loss of its routers" in (project / "log-0").read_text()


def test_rotations_that_go_by_the_length_are_refused(inputs, tmp_path):
    """Each part would take its own end for the row's: up to the length that all rows are rotated alike it is equal."""
    runs, source = [], tmp_path / "source"
    shutil.copytree(inputs / "dense", source)
    config = json.loads((source / "config.json").read_text())
    for longest in (64, 48):
        config |= {
            "max_position_embeddings": longest,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        }
        (source / "config.json").write_text(json.dumps(config))
        for form, count in (("single", 1), ("context", 2)):
            project = tmp_path / f"{form}-{longest}"
            shutil.copytree(source, tmp_path / f"{form}-{longest}-model")
            make(inputs, project, form, count, "dense")
            text = (project / "config.yaml").read_text()
            (project / "config.yaml").write_text(re.sub("(?m)^model: .*$", f"model: {project}-model", text))
            runs.append(describe_run(project, count))
    alone, parts, _, refused = run_all(tmp_path, runs)
    assert alone["finished"] and parts["finished"] and refused["codes"] == [1, 1]
    assert read_report(tmp_path / "context-64")["losses"] == pytest.approx(
        read_report(tmp_path / "single-64")["losses"], abs=1e-4
    )
    assert "rotates rows of more than 48 tokens by where they end" in (tmp_path / "context-48/log-0").read_text()


def test_sixteen_bits(inputs, tmp_path):
    """Matrix products in bf16 over float32 weights: losses are near those of one process in bf16."""
    every = {form.name: form for form in (*FOUR, *TWO)}.values()
    adapters = (form for form in OTHER_WORK if form.asked == LORA and "tensor" in form.name and not form.pins)
    forms = tuple(replace(form, pins={"precision": "bf16"}, tolerance=0.03) for form in (*every, *adapters))
    made = train(inputs, tmp_path, forms)
    for form in forms:
        losses, alone = (read_report(made[name])["losses"] for name in (form.id, form.alone))
        assert losses == pytest.approx(alone, abs=form.tolerance), form.id


def test_experts_in_sixteen_bits(inputs, tmp_path):
    """PyTorch's autocast leaves their grouped products out: float32 weights were multiplied in float32."""
    forms = (*(form for form in TWO if form.name == "expert"), *(Form(*form, "qwen3_moe") for form in OF_WHOLE_EXPERTS))
    forms = tuple(replace(form, pins={"precision": "bf16"}) for form in (Form("single", 1, [], "mixture"), *forms))
    made = train(inputs, tmp_path, forms)
    for form in forms:
        losses, alone = (read_report(made[name])["losses"] for name in (form.id, form.alone))
        assert losses == pytest.approx(alone, abs=0.03), form.id
        assert re.search("as planned: .*trained float32.*experts bfloat16", (made[form.id] / "log-0").read_text())
    single, expert, *_ = (read_report(made[form.id])["losses"] for form in forms)
    assert expert == pytest.approx(single, abs=0.01)


def test_every_form_that_is_emitted_was_run():
    (axis,) = [axis for axis in list_axes() if axis.name == "parallelism"]
    looped = {t.name for t in axis.members if Trait.OWN_LOOP in t.provides}
    assert looped == {form.name for form in (*TWO, *FOUR)}


def test_every_type_that_is_named_was_run():
    (axis,) = [axis for axis in list_axes() if axis.name == "parallelism"]
    for form in axis.members:
        if isinstance(form, Looped):
            assert form.model_types <= {"llama", *TYPES}, form.name
            usual = RUN_TYPES if isinstance(form, Pipeline) else WHOLE_LAYERS_TYPES
            usual -= TENSOR_FAULTS.keys() if form.name.startswith("tensor") else set()
            assert form.model_types == (MIXTURE_TYPES if isinstance(form, Expert) else usual), form.name
            assert not form.faults.keys() & form.model_types, form.name
            adapted = {work.name for work in OTHER_WORK if work.asked == LORA and work.model in MIXTURE_TYPES}
            assert form.adapts_mixtures == (form.name in adapted), form.name
            weighed = {work.name for work in OTHER_WORK if work.asked == DORA}
            emitted = "dora" in form.adapters and Trait.DTENSOR not in form.provides
            assert emitted == (form.name in weighed), form.name
