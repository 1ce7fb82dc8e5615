"""Train a language model by PyTorch/XLA: each optimizer step is one graph, compiled once for each shape.

Your values are in config.yaml, the reasons for the others in PLAN.md. It resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from safetensors.torch import load_file, save_file
from torch_xla.distributed.fsdp import checkpoint_module
from transformers import AutoModelForCausalLM, AutoTokenizer

from config_file import read_config
from finished_runs import record_run
from loaded_weights import check_loaded
from machine import check_machine, peak_memory
from sequences import prepare_rows, show_rows
from sources import find_source
from static_run import (
    Compilations,
    EvaluationStopped,
    RunArguments,
    StopOnSignal,
    check_loss,
    count_learned,
    find_checkpoints,
    hold_out,
    load_state,
    order_rows,
    pad_batch,
    parse_arguments,
    save_checkpoint,
    write_json,
)

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
GRAPHS = CONFIG["graphs"]
LEAST_RATE = 1e-30
DECAYED = 2
"""dimensions from which on a weight decays: neither biases nor norms, as Trainer has it"""


def main() -> None:
    args = parse_arguments(CONFIG, HERE, **GRAPHS["arguments"])
    xr.use_spmd()  # one process sees all devices; before any tensor is on one
    check_machine(CONFIG["machine"])
    devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(devices), (devices,), ("fsdp",))
    torch.manual_seed(args.seed)

    source = find_source(CONFIG, "model")
    tokenizer = AutoTokenizer.from_pretrained(source, revision=CONFIG.get("revision"), trust_remote_code=False)
    rows = prepare_rows(CONFIG, tokenizer)
    train_rows, held_rows = hold_out(rows, CONFIG, args, lambda config: prepare_rows(config, tokenizer))
    show_rows(rows, tokenizer, Path(args.output_dir))
    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        revision=CONFIG.get("revision"),
        dtype=torch.float32,  # trained weights stay in fp32, bf16 is for the arithmetic
        attn_implementation="eager",  # XLA fuses it itself; SDPA's decomposition mixes dtypes under its autocast
        output_loading_info=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    run = Run(model, tokenizer, args, mesh, train_rows, held_rows)
    run.train()
    weights = {name: weight.detach().cpu() for name, weight in name_weights(model)}
    model.save_pretrained(args.output_dir, state_dict=weights)
    tokenizer.save_pretrained(args.output_dir)
    run.write_report()
    record_run(HERE, Path(args.output_dir))


class Run:
    """Weights, gradients, optimizer states and rows are divided over the mesh (SPMD): XLA adds what is exchanged."""

    def __init__(self, model, tokenizer, args: RunArguments, mesh: xs.Mesh, train_rows, held_rows):
        self.args, self.mesh, self.train_rows, self.held_rows = args, mesh, train_rows, held_rows
        self.devices = mesh.mesh_shape[0]
        self.device = torch_xla.device()
        self.filler = tokenizer.eos_token_id or 0
        self.micro_batch = args.per_device_train_batch_size * self.devices
        self.global_batch = args.check_batch(self.devices, GRAPHS["global_batch"])
        self.steps = args.count_steps(len(train_rows), self.global_batch)
        self.state: dict[str, Any] = {
            "step": 0,
            "losses": [],
            "eval": {},
            "run": {
                "rows": len(train_rows),
                "global_batch": self.global_batch,
                "seed": args.seed,
                "seq_len": CONFIG["seq_len"],
                "parameters": model.num_parameters(),
            },
        }
        checkpoints = find_checkpoints(Path(args.output_dir))
        if checkpoints:
            self.state = load_state(checkpoints[-1], self.state["run"])
            load_weights(model, checkpoints[-1])
        self.resumed_from = self.state["step"]
        self.model = self.place(model)
        self.optimizer = self.make_optimizer(checkpoints[-1] if checkpoints else None)
        self.compilations = Compilations(count_compilations, describe_fallbacks)
        self.seconds: list[float] = []
        self.tokens = 0
        torch_xla.sync()
        xm.wait_device_ops()  # what was compiled before the first step is not counted

    def place(self, model):
        """On the devices, each weight cut along its longest dimension that they divide; tied ones are tied again."""
        model = model.to(self.device)
        model.tie_weights()
        for weight in model.parameters():
            xs.mark_sharding(weight, self.mesh, self.divide(weight))
        if GRAPHS["recompute"]:
            layers = model.model.layers
            for number, layer in enumerate(layers):
                layers[number] = checkpoint_module(layer)  # torch's own is undone by XLA's common-subexpression pass
        return model.train()

    def divide(self, weight: torch.Tensor) -> tuple[str | None, ...]:
        sizes = [size if size % self.devices == 0 else 0 for size in weight.shape]
        divides = self.devices > 1 and weight.dim() > 1 and any(sizes)
        longest = sizes.index(max(sizes)) if divides else None
        return tuple("fsdp" if dimension == longest else None for dimension in range(weight.dim()))

    def make_optimizer(self, checkpoint: Path | None) -> torch.optim.AdamW:
        """AdamW whose states exist before the first step, and whose rate is a tensor: every step is the same graph."""
        args, named = self.args, list(name_weights(self.model))
        groups = [
            {
                "params": [w for _, w in named if (w.dim() >= DECAYED) is decays],
                "weight_decay": args.weight_decay * decays,
            }
            for decays in (True, False)
        ]
        optimizer = torch.optim.AdamW(
            groups,
            lr=torch.tensor([args.learning_rate]),
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            foreach=False,
            capturable=True,
        )
        saved = load_file(checkpoint / "optimizer.safetensors") if checkpoint else {}
        for name, weight in named:
            blank = {
                "exp_avg": torch.zeros(weight.shape),
                "exp_avg_sq": torch.zeros(weight.shape),
                "step": torch.zeros(1),
            }
            for key, zeros in blank.items():
                state = saved.get(f"{key}:{name}", zeros).to(self.device)
                xs.mark_sharding(state, self.mesh, (None,) if key == "step" else self.divide(weight))
                optimizer.state[weight][key] = state
        return optimizer

    def train(self) -> None:
        self.stop = StopOnSignal(xr.process_count())
        if self.held_rows and "before" not in self.state["eval"]:
            self.state["eval"]["before"] = self.evaluate_or_leave()
        if self.state.pop("left", None):
            print(f"step {self.state['step']}: evaluated, {self.evaluate_or_leave()}", flush=True)
        while self.state["step"] < self.steps:
            self.stop.leave(self.state["step"], self.args.save_strategy)
            began = time.perf_counter()
            loss = self.train_step(self.state["step"])
            self.state["step"] += 1
            self.seconds.append(time.perf_counter() - began)
            self.state["losses"].append(check_loss(loss, self.state["step"]))
            self.log_evaluate_save()
        if self.held_rows:
            self.state["eval"]["after"] = self.evaluate_or_leave()

    def evaluate_or_leave(self) -> dict[str, float]:
        return self.stop.evaluate_or_leave(self.evaluate, self.state["step"], self.args.save_strategy)

    def train_step(self, step: int) -> float:
        """One optimizer step of ``global_batch`` rows, as one graph. The loss is read once it is done."""
        args = self.args
        numbers = order_rows(len(self.train_rows), self.global_batch, step, args.seed)
        rows = [self.train_rows[number] for number in numbers]
        batches = self.cut(rows, self.micro_batch)
        learned = self.send(count_learned(batches))
        # it divides by the rate: of 0 what had no gradient, such as words that no row has, would be 0 / 0
        rate = self.send(max(LEAST_RATE, args.find_rate(step, self.steps)))
        self.tokens += count_learned(batches)
        shape = (args.gradient_accumulation_steps, *batches[0]["input_ids"].shape)
        with self.compilations.expect_one("training step", shape):
            total = torch.zeros((), device=self.device)
            for batch in batches:
                loss = self.compute_loss(batch, learned)
                loss.backward()
                total = total + loss.detach()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm, foreach=False)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            torch_xla.sync()
        return total.item()

    def cut(self, rows: list[dict], size: int) -> list[dict[str, np.ndarray]]:
        """Micro-batches of one shape: all are as long as the longest needs."""
        longest = max(rows, key=lambda row: len(row["input_ids"]))
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
        length = pad_batch([longest], 1, GRAPHS["multiple"], CONFIG["seq_len"], self.filler)["input_ids"].shape[1]
        return [pad_batch(piece, size, length, length, self.filler) for piece in pieces]

    def compute_loss(self, batch: dict[str, np.ndarray], learned: torch.Tensor) -> torch.Tensor:
        """The sum of the losses over ``learned`` places, of rows that are divided over the mesh."""
        inputs = {name: torch.from_numpy(value).to(self.device) for name, value in batch.items()}
        for value in inputs.values():
            xs.mark_sharding(value, self.mesh, ("fsdp", None))
        with torch.autocast("xla", torch.bfloat16, enabled=self.args.bf16):
            return self.model(**inputs, use_cache=False, num_items_in_batch=learned).loss.sum()

    def send(self, value: float) -> torch.Tensor:
        """A number as an input of the graph: of scalars, 0 and 1 would be constants of it, each a graph of its own."""
        return torch.tensor([float(value)]).to(self.device)

    def evaluate(self) -> dict[str, float]:
        """The mean loss of the held-out places. Rows without a label fill the last batch."""
        self.model.eval()
        total, places = 0.0, 0
        for batch in self.cut([*self.held_rows], self.micro_batch):
            self.stop.check_evaluation()
            learned = count_learned([batch])
            with torch.no_grad(), self.compilations.expect_one("evaluation", batch["input_ids"].shape):
                loss = self.compute_loss(batch, self.send(learned))
                torch_xla.sync()
            total, places = total + loss.item() * learned, places + learned
        self.model.train()
        return {"loss": total / places}

    def log_evaluate_save(self) -> None:
        args, step = self.args, self.state["step"]
        last = step == self.steps
        if step % args.logging_steps == 0 or last:
            mean = statistics.mean(self.state["losses"][-args.logging_steps :])
            print(f"step {step} of {self.steps}: loss {mean:.4f}, {self.seconds[-1]:.3g} s", flush=True)
        if args.eval_strategy == "steps" and step % args.eval_steps == 0 and self.held_rows and not last:
            try:
                print(f"step {step}: evaluated, {self.evaluate()}", flush=True)
            except EvaluationStopped:
                self.state["left"] = "an evaluation"
        if args.save_strategy == "steps" and (step % args.save_steps == 0 or last or self.stop.signum):
            save_checkpoint(args, self.state, self.write_states)

    def write_states(self, folder: Path) -> None:
        """Tensors alone, never pickles: what a checkpoint holds is read back without running it."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in name_weights(self.model)}
        save_file(weights, folder / "model.safetensors")
        states = {
            f"{key}:{name}": self.optimizer.state[weight][key].cpu().contiguous()
            for name, weight in name_weights(self.model)
            for key in ("exp_avg", "exp_avg_sq", "step")
        }
        save_file(states, folder / "optimizer.safetensors")

    def write_report(self) -> None:
        """run.json: written last, it says that the run is finished."""
        steady = self.seconds[1:] or self.seconds
        speed = {}
        if steady:
            per_step = self.tokens / len(self.seconds)
            speed = {
                "step_seconds": statistics.median(steady),
                "first_step_seconds": self.seconds[0],
                "tokens_per_step": per_step,
                "tokens_per_second": per_step / statistics.median(steady),
                "steps": steady,
            }
        evaluation = {"eval": self.state["eval"] | {"rows": len(self.held_rows)}} if self.held_rows else {}
        report = {
            "schema": 1,
            **speed,
            **peak_memory(),
            "run": self.state["run"],
            "losses": self.state["losses"],
            "finished_step": self.state["step"],
            "resumed_from": self.resumed_from,
            "processes": 1,
            "devices": {"runtime": xr.device_type(), "count": self.devices, "divided": self.count_divided()},
            "compiled": self.compilations.report(),
            "versions": {name: version(name) for name in ("torch", "torch_xla", "transformers")},
            **evaluation,
        }
        write_json(Path(self.args.output_dir) / "run.json", report)
        print(json.dumps({name: report[name] for name in ("devices", "compiled")}))

    def count_divided(self) -> int:
        """Weights that are divided over the devices."""
        return sum("fsdp" in self.divide(weight) for _, weight in name_weights(self.model))


def name_weights(model):
    """Each weight once, by the name that it has without checkpoint_module's wrapper."""
    for name, weight in model.named_parameters():
        yield name.replace("._checkpoint_wrapped_module", ""), weight


def load_weights(model, folder: Path) -> None:
    saved = load_file(folder / "model.safetensors")
    for name, weight in name_weights(model):
        weight.data.copy_(saved[name])


def count_compilations() -> int:
    return met.counter_value("UncachedCompile") or 0


def describe_fallbacks() -> str:
    """Operators that XLA has not, which end a graph: each is read back, computed on the host, and sent again."""
    names = [name for name in met.counter_names() if name.startswith("aten::")]
    return (
        f"Operators that were computed on the host: {', '.join(names)}"
        if names
        else "No operator was computed on the host."
    )


if __name__ == "__main__":
    main()
