"""Every golden training case takes its first step, with a tiny model of the same family: what trains is what was planned.

One process runs as it is, several over gloo (``test_parallel_projects``). Not checked here, because only CUDA can show it: which
kernel SDPA takes, fp16 with its scaler (bf16 in its place), TF32, Liger's and TRL's Triton kernels, compiled graphs, and where
offloaded states lie (host and device are one here).
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_parallel_projects import environment, inputs, on_cpu, run  # noqa: F401  inputs is a fixture

from generator import pipeline
from generator.decide.plan import Planned
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.model import describe
from generator.techniques.edits import merge_edits

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("rewrite", ROOT / "examples" / "rewrite.py")
rewrite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rewrite)
CASES = {case.name: rewrite.read_request(case) for case in rewrite.list_cases()}
TRAINED = [name for name, case in CASES.items() if case.mode == "train" and not str(case.hardware).startswith("tpu")]
"""PyTorch/XLA has an environment of its own: tests/xla"""
TINY = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "max_window_layers": 4,
}
SEQ_LEN, MICRO_BATCH = 64, 2
SIZES = ("replicate", "shard", "tp", "pp", "cp")
"""of a layout: their product is the number of its devices"""
ON_CPU = {"tf32": "false", "fp16": "false", "use_liger_kernel": "false", "torch_compile": "false"}
"""what a CPU refuses, or takes minutes for"""


def shrink_config(path: str | None) -> dict | None:
    if path is None:  # the sample is tiny as it is
        return None
    config = json.loads(Path(path).read_text())
    config.pop("rope_scaling", None)
    config.pop("head_dim", None)
    return config | {name: value for name, value in TINY.items() if name in config} | {"pad_token_id": 0}


def shrink_plan(planned: Planned, config: dict | None) -> Planned:
    """The golden plan's techniques for the tiny model, in two parts whatever it divides."""
    plan, layout = planned.plan, planned.plan.best.layout
    sizes = {name: min(getattr(layout, name), 2) for name in SIZES}
    layout = replace(layout, nodes=1, per_node=math.prod(sizes.values()), ep=min(layout.ep, 2), **sizes)
    model = plan.case.model if config is None else describe(config, "tiny")
    workload = replace(plan.case.workload, seq_len=SEQ_LEN, max_steps=1)
    case = replace(plan.case, model=model, layout=layout, workload=workload)
    execution = replace(
        plan.best.execution,
        micro_batch=MICRO_BATCH,
        accumulation=2,
        seq_len=SEQ_LEN,
        **{name: getattr(layout, name) for name in ("dp", "tp", "pp", "cp", "ep")},
        nodes=layout.nodes,
        dp_shard=layout.shard if layout.replicate > 1 and layout.shard > 1 else 0,
    )
    best = replace(plan.best, layout=layout, execution=execution)
    edits = merge_edits([(t.id, t.edits(case)) for t in plan.best.members])
    return replace(planned, plan=replace(plan, case=case, best=best, edits=edits))


def make_tiny_project(name: str, inputs: Path, folder: Path) -> Path:  # noqa: F811
    """The golden case's project with a tiny model and data in the place of what the hub has."""
    request = CASES[name]
    config = shrink_config(request.config)
    document = to_json(build_document(shrink_plan(pipeline.plan_request(request), config), name=name))
    values = document["config"]
    if config is not None:
        values |= {
            "model": str(save_tiny_model(config, inputs, folder, classify=request.task == "text-classification"))
        }
        values |= {"data": str(write_rows(folder / "rows", request.task)), "data_config": None}
    project = folder / "project"
    render.render(document, project)
    return on_cpu(project)


def save_tiny_model(config: dict, inputs: Path, folder: Path, *, classify: bool) -> Path:  # noqa: F811
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    known = AutoConfig.for_model(**config)
    kind = AutoModelForSequenceClassification if classify else AutoModelForCausalLM
    kind.from_config(known).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(inputs / "model").save_pretrained(folder / "model")
    return folder / "model"


def write_rows(folder: Path, task: str) -> Path:
    """Thirty-two rows; the longest, which come first where lengths are grouped, are all of another length."""
    folder.mkdir(parents=True)
    texts = [("xq" * 10)[: 1 + number % 20] for number in range(32)]
    turns = [[{"role": "user", "content": t}, {"role": "assistant", "content": t[::-1]}] for t in texts]
    rows = {
        "sft": [{"messages": turn} for turn in turns],
        "causal-lm": [{"text": text * 20} for text in texts],
        "text-classification": [{"text": t, "label": n % 2} for n, t in enumerate(texts)],
    }[task]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def list_flags(project: Path) -> list[str]:
    code = (project / "train.py").read_text()
    flags = [word for name, value in ON_CPU.items() if f"{name}=" in code for word in (f"--{name}", value)]
    return [*flags, *(["--bf16", "true"] if "fp16=True" in code else []), "--max_steps", "1"]


def train(project: Path, code: int = 0) -> str:
    flags = list_flags(project)
    plan = json.loads((project / "plan.json").read_text())
    if plan["parallel"]:  # config.yaml says cpu by now
        return run(project, *flags, gpus=plan["case"]["device"]["kind"] != "cpu", code=code)
    done = subprocess.run(
        [sys.executable, "train.py", "--use_cpu", "true", *flags],
        cwd=project,
        env=environment(project, gpus=False) | {"TORCHDYNAMO_DISABLE": "1"},  # layers that are compiled take a minute
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == (code == 0), output[-4000:]
    return output


@pytest.mark.parametrize("name", TRAINED)
def test_first_step_as_planned(name, inputs, tmp_path):  # noqa: F811
    project = make_tiny_project(name, inputs, tmp_path)
    if "import attend_within_rows" in (project / "train.py").read_text():
        pytest.skip("attention within packed rows has a kernel on CUDA alone")
    output = train(project)
    (line,) = re.findall(r"as planned: .*trained (?:tokens|examples) \d+", output)
    assert "states float32" in line
    # over parts of a sequence attention is division.py's own, which checks itself
    own = "context" in json.loads((project / "plan.json").read_text())["choice"].get("parallelism", "")
    assert ("attention sdpa" in line) != own
    assert not line.endswith(" 0")
    assert "memory is not as planned" not in output, output[output.index("memory is not") :][:200]


FAULTS = {
    "adapters in bf16": (
        "rtx-4090-8b-qlora",
        "weight.data = weight.data.float()",
        "pass",
        "dtype of the trained weights: bfloat16, planned float32",
    ),
    "a padding mask": ("rtx-4090-8b-lora", "drop_padding_mask(trainer.model)", "", "attention: with a mask of"),
    "another attention": (
        "rtx-4090-8b-lora",
        'attn_implementation="sdpa"',
        'attn_implementation="eager"',
        "attention: eager, planned sdpa",
    ),
    "weights in bf16": (  # not under FSDP2: Accelerate keeps trained weights in fp32 there
        "t4-classification",
        "dtype=torch.float32",
        "dtype=torch.bfloat16",
        "dtype of the trained weights: bfloat16, planned float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stops_it(fault, inputs, tmp_path):  # noqa: F811
    name, right, wrong, words = FAULTS[fault]
    project = make_tiny_project(name, inputs, tmp_path)
    script = project / "train.py"
    assert right in script.read_text()
    script.write_text(script.read_text().replace(right, wrong))
    assert words in train(project, code=1)
