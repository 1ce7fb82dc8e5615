"""What the cost model says of each measurement of gpu_day.py, in the same units, and the ratio of the two."""

from __future__ import annotations

from generator.case.optimizer_states import ADAM
from generator.case.vendors import find_vendor
from generator.cost import CostModel, device, time
from generator.cost import constants as c
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import build_shape
from generator.model import describe
from hwdetect import catalog
from hwdetect.spec import parse_spec
from hwdetect.types import Device

GIB = 1 << 30


class Predictor:
    """The cost model of one machine: ``machine`` is what gpu_day.py wrote of it."""

    def __init__(self, machine: dict):
        self.machine = machine
        self.device = catalogued(machine)
        self.rates = device.compute_rates(self.device, machine["cores"], (), None)

    def predict(self, row: dict, config: dict | None) -> dict:
        """Named numbers; empty for what the model has no term for."""
        return getattr(self, f"_{row['kind']}")(row, config)

    def _cost_model(self, config: dict, name: str) -> CostModel:
        memory = self.machine["memory_bytes"]
        return CostModel(
            self.device,
            describe(config, name),
            device_memory_bytes=memory,
            host_memory_bytes=self.machine["host_memory_bytes"],
            cpu_budget=self.machine["cores"],
        )

    def _attention_kernel(self) -> str:
        """What scaled_dot_product_attention takes by itself in training."""
        vendor = find_vendor(self.device.vendor)
        return "cudnn" if vendor and vendor.explain_missing("cudnn-attention", self.device) is None else "flash2"

    def _execution(self, run: dict, **more) -> Execution:
        settings = {
            name: tuple(value) if isinstance(value, list) else value for name, value in run.items()
        }  # from JSON
        return Execution(threads=self.machine["cores"] if self.rates.on_cpu else None, **settings, **more)

    def _train(self, row: dict, config: dict) -> dict:
        run = self._execution(row["run"], attention_kernel=self._attention_kernel())
        estimate = self._cost_model(config, row["model"]).estimate(run)
        return {
            "step_seconds": estimate.step_seconds,
            "allocated_bytes": estimate.allocator_peak_gib * GIB,
            "device_bytes": estimate.peak_memory_gib * GIB,
            "fits": estimate.fits,
            "memory_gib": {part.name: part.value for part in estimate.memory},
            "seconds": {part.name: part.value for part in estimate.time},
        }

    def _generate(self, row: dict, config: dict) -> dict:
        run = self._execution(row["run"], mode="infer")
        estimate = self._cost_model(config, row["model"]).estimate(run)
        parts = {part.name: part.value for part in estimate.time}
        decode = (parts.get("decode", 0.0) + parts.get("launch", 0.0)) / run.new_tokens
        return {
            "prefill_seconds": parts["prefill"],
            "decode_seconds_per_token": decode,
            "batch_seconds": estimate.step_seconds,
            "allocated_bytes": estimate.allocator_peak_gib * GIB,
        }

    def _gemm(self, row: dict, _) -> dict:
        run = row["run"]
        tf32 = run["dtype"] == "tf32"
        dtype = "float32" if tf32 else run["dtype"]
        rate = self.rates.product(dtype, tf32)
        seconds = time.compute_product_seconds(run["m"], run["n"], run["k"], rate, self.rates.bytes_per_s, BYTES[dtype])
        return {"seconds": seconds, "flops_per_s": rate}

    def _bandwidth(self, row: dict, _) -> dict:
        return {"bytes_per_s": self.rates.elementwise_bytes_per_s}

    def _attention(self, row: dict, _) -> dict:
        kernel = self._attention_kernel() if row["run"].get("kernel", "sdpa") == "sdpa" else "flash2"
        forward, backward = self.rates.flash(row["run"]["length"], kernel)
        return {"flops_per_s": forward if row["run"]["direction"] == "forward" else backward}

    def _operator(self, row: dict, _) -> dict:
        """Bytes that time.py counts for the operator in bfloat16, over the bandwidth that it assumes."""
        run = row["run"]
        forward = {
            "norm": c.NORM_PASSES * 4.0 + 4 * 2,
            "rotary": c.ROTARY_PASSES * 2,
            "activation": 5.0 * 2,
            "residual": 3 * 2,
        }
        elements = run["tokens"] * run["width"]
        if run["operator"] == "loss":
            return {"seconds": elements * c.LOSS_BYTES / self.rates.elementwise_bytes_per_s}
        each = forward[run["operator"]] * (1.0 if run["direction"] == "forward" else c.BACKWARD_TRAFFIC)
        return {"seconds": elements * each / self.rates.elementwise_bytes_per_s}

    def _launch(self, row: dict, _) -> dict:
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": row["run"]["layers"],
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 64,
        }
        operators = time.count_forward_operators(
            build_shape(describe(config, "launch"), "causal-lm", 0), Execution(weights_dtype="bfloat16")
        )
        share = 1.0 if row["run"]["direction"] == "forward" else 1.0 + c.BACKWARD_LAUNCH_SHARE
        return {"seconds": row["run"]["layers"] * operators * share * self.rates.launch_seconds}

    def _update(self, row: dict, _) -> dict:
        run = row["run"]
        if run["kernel"] == "clip":
            return {}
        passes = ADAM.step_passes + (0.0 if run["kernel"] == "fused" else c.UNFUSED_UPDATE_PASSES)
        size = 4.0 * run["tensors"] * run["elements"]
        return {"seconds": passes * size / self.rates.elementwise_bytes_per_s}

    def _transfer(self, row: dict, _) -> dict:
        return {"bytes_per_s": self.rates.host_link_bytes_per_s}

    def _context(self, row: dict, _) -> dict:
        return {"with_kernels_bytes": device.find_context(self.device.vendor) * GIB}

    def _project(self, row: dict, _) -> dict:
        """plan.json's own estimate, which travelled with the row."""
        return row.get("plan", {})


def catalogued(machine: dict) -> Device:
    """The catalogue's device of that name. Raises ``LookupError`` for one it does not have."""
    if machine["device"] == "cpu":
        assumed = parse_spec(f"cpu:{machine['cores']}")
        return catalog.describe_cpu(assumed.cpu, (), machine["memory_bytes"])
    known = catalog.match_text(machine["name"])
    if known is None:
        raise LookupError(f"no device {machine['name']!r} in the catalogue")
    return catalog.load(known)


PAIRS = {
    "train": (("step_seconds", "median_step_seconds"), ("allocated_bytes", "peak_allocated_bytes")),
    "generate": (
        ("prefill_seconds", "median_prefill_seconds"),
        ("decode_seconds_per_token", "decode_seconds_per_token"),
        ("allocated_bytes", "peak_allocated_bytes"),
    ),
    "gemm": (("seconds", "median_seconds"),),
    "bandwidth": (("bytes_per_s", "bytes_per_s"),),
    "attention": (("flops_per_s", "flops_per_s"),),
    "operator": (("seconds", "median_seconds"),),
    "launch": (("seconds", "median_seconds"),),
    "update": (("seconds", "median_seconds"),),
    "transfer": (("bytes_per_s", "bytes_per_s"),),
    "context": (("with_kernels_bytes", "with_kernels_bytes"),),
}


def compare(row: dict) -> dict:
    """Predicted over measured, by the name of what is predicted."""
    predicted, measured = row.get("predicted") or {}, row.get("measured") or {}
    if row["kind"] == "project":
        return compare_project(predicted, measured)
    pairs = [(p, m) for p, m in PAIRS[row["kind"]] if p in predicted and measured.get(m)]
    return {p: predicted[p] / measured[m] for p, m in pairs}


def compare_project(predicted: dict, measured: dict) -> dict:
    train = measured.get("train")
    if not train or not predicted:
        return {}
    ratios = {"step_seconds": predicted["step_seconds"] / train["step_seconds"]}
    if "peak_memory_gib" in train and "peak_reserved_gib" in train:
        ratios["allocated_bytes"] = predicted["allocator_peak_gib"] / train["peak_memory_gib"]
    return ratios
