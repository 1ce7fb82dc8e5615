"""Rendered projects for tests: of a model so small that it trains in a second, on text of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

from generator import pipeline
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TEXT = "the quick brown fox jumps over the lazy dog\n" * 400
TRAINED = """
import sys
from pathlib import Path
from types import SimpleNamespace as Values

from torch.utils.data import DataLoader
from transformers import default_data_collator

from run_report import RunReport

args = Values(output_dir=sys.argv[sys.argv.index("--output_dir") + 1], world_size=1, device="cpu")
Path(args.output_dir).mkdir(parents=True)
state = Values(global_step=0, max_steps=2, is_world_process_zero=True, log_history=[])
report = RunReport(measure=lambda: {"peak_memory_gib": 1.1})
loader = DataLoader([{"input_ids": [1] * 16}] * 8, batch_size=4, collate_fn=default_data_collator)
report.on_train_begin(args, state, None, train_dataloader=loader)
report.on_epoch_begin(args, state, None)
for (step, loss), _ in zip(((1, 2.0), (2, 1.0)), loader, strict=True):
    state.global_step = step
    report.on_step_end(args, state, None)
    state.log_history.append({"step": step, "loss": loss})
    report.on_log(args, state, None)
report.write(args, state, report.build(args, state))
"""
"""A train.py of two steps in no time: run.json by the project's own leaf."""
ANSWERED = """
import sys
from pathlib import Path

from infer_report import write_report

path = Path(sys.argv[sys.argv.index("--report") + 1])
write_report(path, prompt="a", answer="<script>x</script>\\nand a second line", prompt_tokens=1, new_tokens=[4, 4], seconds=[1.0, 2.0], first_call_seconds=3.0)
"""
"""An infer.py of two calls and one before: infer.json by the project's own leaf."""


def render_small_project(folder: Path, data: str | Path = TEXT, name: str = "d.txt", **request) -> Path:
    """A project in ``folder``/p; its model and data lie beside it. ``data``: what its file holds, or a file that is there."""
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "config.json").write_text(json.dumps(MODEL))
    if isinstance(data, str):
        (folder / name).write_text(data)
    small = {"seq_len": 16, "global_batch": 4, "max_steps": 8, "pins": (("compile", "off"), ("precision", "fp32"))}
    places = {
        "model": str(folder / "m" / "config.json"),
        "data": str(folder / name if isinstance(data, str) else data),
        "hardware": "cpu:1",
    }
    if request.get("mode") == "infer":  # which takes neither
        del places["data"], small["global_batch"]
    planned = pipeline.plan_request(Request(**{"offline": True} | places | small | request))
    document = to_json(build_document(planned, name="p"))
    document["config"]["machine"]["memory_gib"] = document["config"]["machine"]["needs_gib"]
    render.render(document, folder / "p")
    link_sources(place_sources(planned.work, folder / "p"), folder / "p")
    return folder / "p"
