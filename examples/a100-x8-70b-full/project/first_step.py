"""Does it train what was planned? Looked at once, in the first step: libraries cast and fall back without a word."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention.bias import CausalBias
from transformers import Trainer, TrainerCallback

from arguments import list_given
from model_states import list_model_states

GIB = 2**30
TOLERANCE = 0.1
REMEDY = "plan again with the libraries that are installed; without first_step in config.yaml it trains as it is"


def accept(*call) -> None:
    """Of a kernel that the plan does not name nothing is asked."""


class CheckFirstStep(TrainerCallback):
    """Stops where dtypes, device, attention or labels are not as planned; prints whose bytes are more than 10 % off."""

    def __init__(self, trainer: Trainer, config: dict, explain_refusal: Callable[..., str | None] = accept):
        self.trainer = trainer
        self.explain_refusal = explain_refusal
        self.planned = config.get("first_step")
        self.checks_turns = config.get("loss_on") == "assistant"
        self.adds_router_loss = "router_loss" in config
        self.sizes: dict[str, int] = {}
        self.trained_tokens: list[torch.Tensor] = []
        self.shared: list[int] = []
        self.watches = self.planned is not None
        self.given = list_given(config)
        self.unit = "tokens"

    def on_train_begin(self, args, state, control, **kwargs):
        if not self.watches:
            return
        self.leave_to_owner()
        self.check_dtypes("trained", "frozen")
        model = self.trainer.model
        devices = " and ".join(sorted({weight.device.type for weight in model.parameters()}))
        if devices != self.planned.get("device", devices):
            self.stop("device of the weights", self.planned["device"], devices)
        attention = model.config._attn_implementation
        if attention != self.planned.get("attention", attention):
            self.stop("attention", self.planned["attention"], attention)
        self.watch_batches()

    def leave_to_owner(self) -> None:
        """What a flag or config.yaml sets otherwise than the plan is not compared with the plan."""
        for name, parts in SETS.items():
            parts = [part for part in parts if part in self.planned]
            if name in self.given and parts:
                self.planned = {key: value for key, value in self.planned.items() if key not in parts}
                if self.trainer.args.process_index == 0:
                    print(f"not compared with the plan: {', '.join(parts)} ({name} is yours)")

    def watch_batches(self) -> None:
        """Look at the batches of the first step, and their attention: the longest rows may have no padding."""
        compute_loss = self.trainer.compute_loss

        def watch(model, inputs, *args, **kwargs):
            if not model.training:
                return compute_loss(model, inputs, *args, **kwargs)
            labels = inputs["labels"]
            self.trained_tokens.append((labels != -100).sum())
            self.unit = "tokens" if labels.dim() > 1 else "examples"
            if self.checks_turns:
                self.check_turns(inputs["input_ids"].tolist(), labels.tolist())
            looks = self.planned.keys() & OF_CALLS
            if self.is_compiled() or not looks:  # a graph would be compiled again without the look at it, if at all
                return compute_loss(model, inputs, *args, **kwargs)
            attention = WatchedAttention(self.explain_refusal)
            beside = attention.watch_varlen() if self.planned.get("attention") == "varlen" else nullcontext()
            experts = watch_experts() if "experts" in self.planned else nullcontext()
            with mock.patch.object(F, "scaled_dot_product_attention", attention), beside, experts as multiplied:
                loss = compute_loss(model, inputs, *args, **kwargs)
            self.check_attention(attention)
            if multiplied and multiplied != {self.planned["experts"]}:
                self.stop("dtype of the experts' products", self.planned["experts"], " and ".join(sorted(multiplied)))
            if "cu_seq_lens_q" in inputs and self.planned.get("attention") in BY_ROW:
                rows = inputs["cu_seq_lens_k"].diff()  # as they are attended to: what they share stands there once
                self.check_rows(rows.tolist(), attention)
                if len(rows) > 1:
                    self.shared.append(int((rows - inputs["cu_seq_lens_q"].diff()).max()))
            return loss

        self.trainer.compute_loss = watch
        self.stop_watching = lambda: setattr(self.trainer, "compute_loss", compute_loss)

    def is_compiled(self) -> bool:
        """The model, or its layers each by itself."""
        layers = (module._compiled_call_impl for module in self.trainer.model.modules())
        return self.trainer.args.torch_compile or any(layers)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if not self.watches:
            return
        self.stop_watching()
        if not any(count.item() for count in self.trained_tokens):
            self.stop(f"trained {self.unit} of the first step", "some", 0, "mend the data, or give a larger seq_len")
        if self.adds_router_loss and self.trainer.router_aux_loss_coef and not self.trainer.router_losses:
            self.stop("loss of the routers", f"{self.trainer.router_aux_loss_coef:g} of it", "none")
        self.check_dtypes("gradients")

    def on_step_end(self, args, state, control, **kwargs):
        if not self.watches or self.trainer.accelerator.optimizer_step_was_skipped:
            return  # a scaler that still looks for its factor skips steps: the optimizer has made no states yet
        self.watches = False
        self.check_dtypes("states")
        self.take_largest()
        if state.is_world_process_zero:
            values = {**self.planned, f"trained {self.unit}": sum(count.item() for count in self.trained_tokens)}
            print("as planned: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in values.items() if k != "gib"))
            self.compare_bytes()
            if (shared := min(self.shared, default=0)) < self.planned.get("shared_tokens", 0):
                print(f"slower than planned: texts share {shared} tokens, planned {self.planned['shared_tokens']}")

    def check_dtypes(self, *kinds: str) -> None:
        states = list_model_states(self.trainer)
        adapters = bool(states["frozen"])
        for kind in kinds:
            tensors = states[kind]
            on_device = [tensor for tensor in tensors if tensor.device.type == self.trainer.args.device.type]
            part = {"trained": "adapters" if adapters else "weights", "frozen": "weights"}.get(kind, kind)
            if kind != "frozen" or adapters:
                self.sizes[part] = sum(tensor.numel() * tensor.element_size() for tensor in on_device)
            if kind == "states" and self.planned.get(kind) == "uint8" and not any(map(is_packed, states["trained"])):
                self.planned = self.planned | {kind: "float32"}
            if kind in self.planned and not has_dtype(tensors, self.planned[kind]):
                self.stop(f"dtype of the {NAMES[kind]}", self.planned[kind], describe_dtypes(tensors))

    def check_attention(self, attention: "WatchedAttention") -> None:
        planned = self.planned.get("attention")
        # a model may call it over other things besides: Inkling 2 attends to its residual streams so, whatever is named
        fell_back = planned == "sdpa" if not attention.calls else planned not in ("sdpa", "eager")
        if planned not in (None, *BY_ROW) and fell_back:
            self.stop("attention", planned, f"{attention.calls} calls of PyTorch's own (sdpa)")
        if planned is None and "dense_mask" in self.planned and not attention.calls:
            self.stop("attention", "over parts of the sequence", "no call of PyTorch's own")
        if self.planned.get("dense_mask") is False and attention.masks:
            self.stop("attention", "without a mask", f"with a mask of {attention.masks[0]} elements")
        if self.planned.get("cached_casts") is False and attention.caches:
            self.stop("autocast's cache of cast weights", "off", "on")
        if self.planned.get("kernel") == "flash" and attention.refusals:
            self.stop("attention", "a flash kernel", f"none that takes {attention.refusals[0]}")

    def check_rows(self, lengths: list[int], attention: "WatchedAttention") -> None:
        """In every layer attention was called for each row by itself, or with the limits of all: none sees another."""
        layers, rest = divmod(len(attention.rows), len(lengths))
        if not layers or rest or sorted(attention.rows) != sorted(lengths * layers):
            others = Counter(attention.rows) - Counter(lengths * layers)
            called = ", ".join(f"{n} x {length} tokens" for length, n in others.most_common(3)) or "fewer"
            self.stop("attention", f"rows of {min(lengths)} to {max(lengths)} tokens, each by itself", called)

    def check_turns(self, rows: list[list[int]], labels: list[list[int]]) -> None:
        """No row is learned from its first token on, and nowhere what follows the header of a user's turn."""
        tokenizer = self.trainer.processing_class
        text = find_user_header(tokenizer)
        if not text and tokenizer.chat_template and self.trainer.args.process_index == 0:
            print(
                "not checked: what is learned from of a user's turns, the chat template does not show where they begin"
            )
        header = tokenizer(text, add_special_tokens=False)["input_ids"]
        for tokens, targets in zip(rows, labels, strict=True):
            places = range(len(tokens) if header else 0)
            starts = [place for place in places if tokens[place : place + len(header)] == header]
            for start in [0] if targets[0] != -100 else starts:
                content = start + len(header)  # a header may begin with the end of an answer, which is learned
                if targets[0] != -100 or any(target != -100 for target in targets[content : content + 2]):
                    text = tokenizer.decode(tokens[start : content + 2])  # the header, a line break, the first word
                    advice = "see how data.py masks labels, or set loss_on: all in config.yaml"
                    self.stop("trained tokens", "those of the assistant alone", f"also {text!r}", advice)

    def take_largest(self) -> None:
        """Of each part, what the process that holds most of it holds: one may have more layers than another."""
        if not dist.is_initialized():
            return
        sizes = [self.sizes.get(part, 0) for part in self.planned["gib"]]
        largest = torch.tensor(sizes, dtype=torch.int64, device=self.trainer.args.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        self.sizes = dict(zip(self.planned["gib"], largest.tolist(), strict=True))

    def compare_bytes(self) -> None:
        different = [
            f"{part} {self.sizes[part] / GIB:.3g} GiB, planned {planned:.3g}"
            for part, planned in self.planned["gib"].items()
            if self.sizes.get(part) and abs(self.sizes[part] / GIB - planned) > TOLERANCE * planned
        ]
        if different:
            print("memory is not as planned: " + "; ".join(different))

    def stop(self, what: str, planned: object, actual: object, remedy: str = REMEDY) -> None:
        process = f"process {self.trainer.args.process_index}: " if self.trainer.args.world_size > 1 else ""
        sys.exit(f"{process}{what}: {actual}, planned {planned}. What to do: {remedy}.")


SETS = {
    "optim": ("gradients", "states"),
    "optim_args": ("states",),
    "use_cpu": ("device", "kernel"),
    "bf16": ("kernel", "cached_casts", "experts"),
    "fp16": ("kernel", "cached_casts", "experts"),
    "activation_checkpointing": ("cached_casts",),  # stages of a pipeline share copies where nothing is computed again
    "deepspeed": ("trained", "frozen", "gradients", "states", "experts"),
    "fsdp": ("trained", "frozen", "gradients", "states", "experts"),
}
"""Parts of the plan that an argument decides, by its name."""
OF_CALLS = {"attention", "dense_mask", "kernel", "cached_casts", "experts"}
"""Parts of the plan for which attention and grouped experts are looked at as they are called."""
BY_ROW = ("row_by_row", "varlen")
"""Implementations that keep the rows of a batch apart where they stand one after the other."""
NAMES = {
    "trained": "trained weights",
    "frozen": "frozen weights",
    "gradients": "gradients",
    "states": "optimizer's states",
}


class WatchedAttention:
    """PyTorch's attention, which remembers its masks, and the calls that no fused kernel takes."""

    def __init__(self, explain_refusal: Callable[..., str | None]):
        self.function = F.scaled_dot_product_attention
        self.explain_refusal = explain_refusal
        self.calls = 0
        self.caches = False
        self.masks: list[int] = []
        self.refusals: list[str] = []
        self.rows: list[int] = []

    @contextmanager
    def watch_varlen(self) -> Generator[None]:
        """PyTorch's kernel for rows one after the other keeps apart what stands between its limits."""
        from torch.nn.attention import varlen

        function = varlen.varlen_attn

        def watch(query, key, value, limits, *args, **kwargs):
            self.rows += limits.diff().tolist()
            return function(query, key, value, limits, *args, **kwargs)

        with mock.patch.object(varlen, "varlen_attn", watch):
            yield

    def __call__(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        self.calls += 1
        self.caches |= torch.is_autocast_cache_enabled()
        self.rows.append(query.shape[-2])
        if attn_mask is not None and not isinstance(attn_mask, CausalBias):  # which is no tensor of numbers
            self.masks.append(attn_mask.numel())
        grouped = kwargs.get("enable_gqa", False)
        refusal = self.explain_refusal(query, key, value, attn_mask, dropout_p, is_causal, grouped)
        if refusal:
            self.refusals.append(refusal)
        with mock.patch.object(F, "scaled_dot_product_attention", self.function):  # by which a causal bias knows it
            return self.function(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)


@contextmanager
def watch_experts() -> Generator[set[str]]:
    """The dtypes of what PyTorch multiplies as grouped experts."""
    function, dtypes = F.grouped_mm, set()

    def watch(inputs: torch.Tensor, weight: torch.Tensor, **kwargs) -> torch.Tensor:
        dtypes.update(count_dtypes([inputs, weight]))
        return function(inputs, weight, **kwargs)

    with mock.patch.object(F, "grouped_mm", watch):
        yield dtypes


def is_packed(weight: torch.Tensor) -> bool:
    """Its optimizer's states, by bitsandbytes (min_8bit_size) and torchao: smaller ones stay in 32 bits."""
    return weight.numel() >= 4096


def has_dtype(tensors: list[torch.Tensor], planned: str) -> bool:
    """Most elements have it, and the others float32. Packed values stand beside tensors that were too small to pack."""
    counts = count_dtypes(tensors)
    if planned in ("uint8", "int8"):
        return planned in counts
    return bool(counts) and max(counts, key=counts.__getitem__) == planned and counts.keys() <= {planned, "float32"}


def count_dtypes(tensors: list[torch.Tensor]) -> Counter[str]:
    """Elements by the dtype's name."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return counts


def describe_dtypes(tensors: list[torch.Tensor]) -> str:
    return " and ".join(name for name, _ in count_dtypes(tensors).most_common()) or "none"


TURNS = [("user", "first words"), ("assistant", "an answer"), ("user", "other words"), ("assistant", "the end")]


def find_user_header(tokenizer) -> str:
    """What the chat template writes before what a user says: what its first and its second such turn have in common."""
    texts = [render_turns(tokenizer, turns) for turns in (TURNS, [("system", "rules"), *TURNS])]
    text = next((text for text in texts if re.search("first words.*an answer.*other words", text, re.DOTALL)), None)
    if text is None:
        return ""
    before, between = text.split("first words")[0], text.split("an answer")[1].split("other words")[0]
    length = 0
    while length < min(len(before), len(between)) and before[-length - 1] == between[-length - 1]:
        length += 1
    return before[len(before) - length :].strip()


def render_turns(tokenizer, turns: list[tuple[str, str]]) -> str:
    """Nothing where there is no template, or one that refuses these turns: it may want tools, or a system's turn."""
    try:
        return tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in turns], tokenize=False)
    except Exception:  # a template is a program of others: what it raises may be anything
        return ""
