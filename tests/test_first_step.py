"""first_step.py sees each fault when it is put in, and nothing where there is none. Real trainers, a tiny model."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from generator.cost.execution import Execution
from generator.cost.optimizers import compute_state_bytes
from generator.emit.first_step import expect_dtypes, name_states_dtype
from generator.estimate.optimizers import list_optimizer_states
from generator.techniques.base import Technique, list_axes
from generator.techniques.precision.bf16 import DROP_CASTS

PLANNED = {
    "trained": "float32",
    "gradients": "float32",
    "states": "float32",
    "device": "cpu",
    "attention": "sdpa",
    "dense_mask": False,
    "gib": {"weights": 1.0},
}


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def list_installed_optimizers() -> list[Technique]:
    """Of the libraries that the tests have. AdaLomo asks for CUDA as it is made (templates/test_adalomo_states.py)."""
    axis = next(axis for axis in list_axes() if axis.name == "optimizer")
    members = [technique for technique in axis.members if technique.name != "adalomo"]
    return [technique for technique in members if technique.requires is None or version_of(technique.requires)]


@pytest.fixture
def first_step(load):
    """The leaf as a project has it: beside the model_states of one process."""
    load("model_states/plain", "model_states")
    load("padding")
    load("terminal")
    load("arguments")
    return load("first_step")


def make_trainer(
    folder: Path, *, adapters: bool = False, attention: str = "sdpa", dtype: str = "float32", rank: int = 8, **more
):
    """A Trainer of two rows a batch, one of them padded."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    if adapters:
        model = get_peft_model(model, LoraConfig(r=rank, task_type="CAUSAL_LM", target_modules="all-linear"))
    tokens = [[1, *range(10, 17)], [1, *range(20, 24), 0, 0, 0]]
    labels = [[-100, *row[1:5], *(-100 if t == 0 else t for t in row[5:])] for row in tokens]
    masks = [[int(place == 0 or token != 0) for place, token in enumerate(row)] for row in tokens]
    rows = [
        {"input_ids": t, "labels": label, "attention_mask": m}
        for t, label, m in zip(tokens, labels, masks, strict=True)
    ]
    arguments = {"optim": "adamw_torch", "bf16": False} | more
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=2,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    return Trainer(model=model, args=args, train_dataset=rows * 4)


def make_mixture_trainer(folder: Path, **more):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer

    dense = make_trainer(folder, **more)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = Qwen3MoeConfig(hidden_size=32, num_hidden_layers=2, vocab_size=96, **heads, **experts)
    return Trainer(model=Qwen3MoeForCausalLM(config), args=dense.args, train_dataset=dense.train_dataset)


def train(first_step, trainer, **planned) -> None:
    """``planned`` in the place of what the plan expects; ``loss_on`` is the config's."""
    config = {"first_step": PLANNED | planned, "loss_on": planned.pop("loss_on", None)}
    sys.modules["padding"].drop_padding_mask(trainer.model)
    trainer.add_callback(first_step.CheckFirstStep(trainer, config))
    trainer.train()


def test_as_planned(first_step, tmp_path, capsys):
    trainer = make_trainer(tmp_path)
    weights = sum(p.numel() * 4 for p in trainer.model.parameters()) / 2**30
    parts = {"weights": weights, "gradients": 1.2 * weights, "states": 2 * weights}
    train(first_step, trainer, gib=parts)
    printed = capsys.readouterr().out
    assert "as planned: trained float32, gradients float32, states float32" in printed
    assert "trained tokens " in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("memory is not as planned")]
    assert "gradients" in line and "weights" not in line and "states" not in line
    assert trainer.state.global_step == 2
    assert "compute_loss" in vars(trainer)  # what was there before, put back
    assert trainer.compute_loss.__qualname__ == "Trainer.compute_loss"


def stop_of(first_step, trainer, **planned) -> str:
    with pytest.raises(SystemExit) as stopped:
        train(first_step, trainer, **planned)
    assert "\n" not in stopped.value.code and "What to do: " in stopped.value.code
    return stopped.value.code


def test_adapters_in_bf16(first_step, tmp_path):
    import torch

    trainer = make_trainer(tmp_path, adapters=True, dtype="bfloat16")
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
    words = stop_of(first_step, trainer, frozen="bfloat16")
    assert words.startswith("dtype of the trained weights: bfloat16, planned float32")


def test_one_adapter_in_bf16(first_step, tmp_path):
    import torch

    trainer = make_trainer(tmp_path, adapters=True)
    weight = next(p for p in trainer.model.parameters() if p.requires_grad)
    weight.data = weight.data.to(torch.bfloat16)
    assert "float32 and bfloat16, planned float32" in stop_of(first_step, trainer, frozen="float32")


def test_frozen_weights_in_fp32(first_step, tmp_path):
    trainer = make_trainer(tmp_path, adapters=True)
    assert "dtype of the frozen weights: float32, planned bfloat16" in stop_of(first_step, trainer, frozen="bfloat16")


def test_states_in_bf16(first_step, tmp_path):
    """Weights and gradients in fp32, and an optimizer that rounds its states."""
    import torch

    trainer = make_trainer(tmp_path)

    class Rounded(torch.optim.AdamW):
        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                state["exp_avg"] = state["exp_avg"].bfloat16()
                state["exp_avg_sq"] = state["exp_avg_sq"].bfloat16()

    trainer.optimizer = Rounded(trainer.model.parameters())
    assert "dtype of the optimizer's states: bfloat16, planned float32" in stop_of(first_step, trainer)


def test_no_states(first_step, tmp_path):
    assert "dtype of the optimizer's states: none, planned float32" in stop_of(
        first_step, make_trainer(tmp_path, optim="sgd")
    )


@pytest.mark.parametrize("given", ["flag", "config.yaml"])
def test_an_optimizer_of_the_owner_is_not_compared_with_the_plan(first_step, tmp_path, monkeypatch, capsys, given):
    """It was stopped with the advice to plan again with the libraries that are installed."""
    config = {"first_step": PLANNED, "training": {"optim": "sgd"} if given == "config.yaml" else {}}
    monkeypatch.setattr(sys, "argv", ["train.py", *(["--optim=sgd"] if given == "flag" else [])])
    trainer = make_trainer(tmp_path, optim="sgd")
    sys.modules["padding"].drop_padding_mask(trainer.model)
    trainer.add_callback(first_step.CheckFirstStep(trainer, config))
    trainer.train()
    assert "not compared with the plan: gradients, states (optim is yours)" in capsys.readouterr().out


def test_a_classifier_trains_on_examples(first_step, tmp_path):
    import torch

    trainer = make_trainer(tmp_path)
    trainer.compute_loss = lambda model, inputs, **_: 0.0
    check = first_step.CheckFirstStep(trainer, {"first_step": {"gib": {}}})
    check.watch_batches()
    trainer.compute_loss(trainer.model, {"labels": torch.tensor([1, 0])})
    assert check.unit == "examples" and check.trained_tokens == [2]


def test_gradients_in_bf16(first_step, tmp_path):
    trainer = make_trainer(tmp_path, dtype="bfloat16")
    words = stop_of(first_step, trainer, trained="bfloat16")
    assert "dtype of the gradients: bfloat16, planned float32" in words


def test_no_trained_label(first_step, tmp_path):
    trainer = make_trainer(tmp_path)
    for row in trainer.train_dataset:
        row["labels"] = [-100] * len(row["labels"])
    assert "trained tokens of the first step: 0, planned some" in stop_of(first_step, trainer)


def test_eager_instead_of_sdpa(first_step, tmp_path):
    assert "attention: eager, planned sdpa" in stop_of(first_step, make_trainer(tmp_path, attention="eager"))


def test_a_model_that_says_sdpa_and_does_not_call_it(first_step, tmp_path, monkeypatch):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", eager_attention_forward)
    assert "attention: 0 calls of PyTorch's own (sdpa)" in stop_of(first_step, make_trainer(tmp_path))


def test_compiled_layers_are_not_looked_into(first_step, tmp_path, capsys, monkeypatch):
    """Dynamo ended at what stood in the place of PyTorch's attention, where no evaluation had compiled before."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    monkeypatch.delattr(first_step, "WatchedAttention")
    trainer = make_trainer(tmp_path)
    for layer in trainer.model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.compile(backend="eager")
    train(first_step, trainer, attention="sdpa", dense_mask=False)
    assert "as planned: " in capsys.readouterr().out


def test_a_padding_mask(first_step, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["padding"], "drop_padding_mask", lambda model: None)
    assert "attention: with a mask of 128 elements, planned without" in stop_of(first_step, make_trainer(tmp_path))


@pytest.mark.parametrize("heads", [2, 4])
def test_a_causal_bias_is_attended_to_as_without_the_look(first_step, monkeypatch, heads):
    """Its own numbers were never set: as a mask they are another attention of two heads, and an error of four."""
    import torch
    from torch.nn import functional as F
    from torch.nn.attention.bias import causal_lower_right

    query, key = torch.randn(1, heads, 4, 8), torch.randn(1, heads, 12, 8)
    expected = F.scaled_dot_product_attention(query, key, key, attn_mask=torch.ones(4, 12).tril(8).bool())
    watched, asked = first_step.WatchedAttention(lambda *call: asked.append(call)), []
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    torch.testing.assert_close(F.scaled_dot_product_attention(query, key, key, causal_lower_right(4, 12)), expected)
    assert (watched.calls, watched.rows, watched.masks) == (1, [4], [])
    (call,) = asked
    assert repr(call[3]) == repr(causal_lower_right(4, 12)) and call[3] is not None
    assert F.scaled_dot_product_attention is watched


def test_a_causal_bias_is_asked_for_with_the_kernel_that_it_takes(load, monkeypatch):
    """torch/nn/attention/bias.py asks for flash alone, with no mask; what cuDNN would take is no help."""
    import torch
    from torch.nn.attention.bias import causal_lower_right

    class OnGpu(torch.Tensor):
        is_cuda = True

    query, key = (torch.randn(1, 4, n, 8, dtype=torch.bfloat16).as_subclass(OnGpu) for n in (4, 12))
    explain, asked = load("attention_kernel").explain_refusal, []
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda call: asked.append(call) or takes)
    monkeypatch.setattr(torch.backends.cuda, "can_use_cudnn_attention", lambda call: True)
    bias, mask = causal_lower_right(4, 12), torch.ones(4, 12, dtype=torch.bool)
    takes = False
    assert explain(query, key, key, bias, 0.0, False, False) == "torch.bfloat16 of (1, 4, 4, 8)"
    assert asked[0].attn_mask is None and not asked[0].is_causal
    assert explain(query, key, key, mask, 0.0, False, False) is None
    takes = True
    assert explain(query, key, key, bias, 0.0, False, False) is None


def test_parts_of_a_sequence_that_are_attended_to_by_hand(first_step, tmp_path):
    """The plan names no implementation of Transformers there, and counts on PyTorch's attention."""
    trainer = make_trainer(tmp_path, attention="eager")
    planned = {"gib": {}, "dense_mask": False, "kernel": "flash"}
    trainer.add_callback(first_step.CheckFirstStep(trainer, {"first_step": planned}))
    with pytest.raises(SystemExit, match="attention: no call of PyTorch's own, planned over parts of the sequence"):
        trainer.train()


def test_autocast_that_keeps_what_it_casts(first_step, tmp_path):
    with pytest.raises(SystemExit, match="autocast's cache of cast weights: on, planned off"):
        train(first_step, make_trainer(tmp_path, bf16=True), cached_casts=False)


def test_autocast_without_its_cache_trains_the_same_weights(first_step, tmp_path):
    """The statement that bf16 and fp16 write, bit for bit."""
    from accelerate.utils import AutocastKwargs

    cached, uncached = (make_trainer(tmp_path, bf16=True, gradient_accumulation_steps=2) for _ in range(2))
    exec(DROP_CASTS, {"trainer": uncached, "AutocastKwargs": AutocastKwargs})
    train(first_step, cached)
    train(first_step, uncached, cached_casts=False)
    for one, other in zip(cached.model.parameters(), uncached.model.parameters(), strict=True):
        assert one.equal(other)


def test_a_model_that_calls_it_beside_its_attention(first_step, tmp_path, capsys):
    """Inkling 2 attends to its residual streams by it: its plan, which names eager attention, ended in the first step."""
    from torch.nn import functional as F

    trainer = make_trainer(tmp_path, attention="eager")
    trainer.model.model.norm.register_forward_hook(lambda _, __, x: F.scaled_dot_product_attention(x, x, x))
    train(first_step, trainer, attention="eager")
    assert "attention eager" in capsys.readouterr().out


def test_experts_that_autocast_leaves_in_32_bits(first_step, load, tmp_path, monkeypatch, capsys):
    from transformers.integrations import moe

    monkeypatch.setattr(moe, "_grouped_mm", moe._grouped_mm)  # as it is now, when this test is over
    with pytest.raises(SystemExit, match="dtype of the experts' products: float32, planned bfloat16"):
        train(first_step, make_mixture_trainer(tmp_path, bf16=True), experts="bfloat16")
    train(first_step, make_mixture_trainer(tmp_path), experts="float32")
    load("expert_products").cast_experts()
    train(first_step, make_mixture_trainer(tmp_path, bf16=True), experts="bfloat16")
    assert "experts bfloat16" in capsys.readouterr().out


def test_another_device(first_step, tmp_path):
    assert "device of the weights: cpu, planned cuda" in stop_of(first_step, make_trainer(tmp_path), device="cuda")


def test_without_the_section_nothing_is_checked(first_step, tmp_path, capsys):
    trainer = make_trainer(tmp_path, attention="eager")
    trainer.add_callback(first_step.CheckFirstStep(trainer, {}))
    trainer.train()
    assert trainer.state.global_step == 2 and "as planned" not in capsys.readouterr().out


HEADERS = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"


def make_tokenizer(template: str | None = HEADERS):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "hello", "there", "good", "day", "?"]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    model.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, additional_special_tokens=words[:4])
    tokenizer.chat_template = template
    return tokenizer


TURNS = "<|user|> hello there <|end|> <|assistant|> good day <|end|>"
"""two turns: tokens 0 to 3 are the user's"""


def make_check(first_step, folder: Path, template: str | None = HEADERS):
    """The check, and the tokens of an exchange."""
    trainer = make_trainer(folder)
    trainer.processing_class = make_tokenizer(template)
    config = {"first_step": PLANNED, "loss_on": "assistant"}
    return first_step.CheckFirstStep(trainer, config), trainer.processing_class(TURNS)["input_ids"]


@pytest.mark.parametrize("first", [5, 4], ids=["answer", "answer and its header"])
def test_learning_from_the_assistant(first_step, tmp_path, first):
    check, tokens = make_check(first_step, tmp_path)
    labels = [-100] * first + tokens[first:]
    check.check_turns([tokens * 2], [labels * 2])


def test_the_end_of_an_answer_may_stand_before_every_turn_of_a_user(first_step, tmp_path):
    """So it does where a template puts a system turn of its own first: SmolLM2, Qwen2.5, Llama 3.1."""
    template = "<|system|>hello<|end|>" + HEADERS
    assert first_step.find_user_header(make_tokenizer(template)).startswith("<|end|>")
    check, tokens = make_check(first_step, tmp_path, template)
    labels = [-100] * 5 + tokens[5:]
    check.check_turns([tokens * 2], [labels * 2])
    with pytest.raises(SystemExit, match="planned those of the assistant alone"):
        check.check_turns([tokens * 2], [labels + tokens])


@pytest.mark.parametrize("first", [0, 1, 2])
def test_learning_from_a_user(first_step, tmp_path, first):
    """In the second exchange, from a token of the user's on."""
    check, tokens = make_check(first_step, tmp_path)
    right, wrong = [-100] * 4 + tokens[4:], [-100] * first + tokens[first:]
    with pytest.raises(SystemExit, match=r"trained tokens: also '<\|user\|> .*planned those of the assistant alone"):
        check.check_turns([tokens * 2], [right + wrong])


def test_a_long_row_is_looked_through_once(first_step, tmp_path):
    """A copy of the rest of the row for every token took minutes of a row of 100,000."""
    check, tokens = make_check(first_step, tmp_path)
    labels = [-100] * 5 + tokens[5:]
    begun = time.process_time()
    check.check_turns([tokens * 15_000], [labels * 15_000])
    assert time.process_time() - begun < 5


def test_learning_from_everything(first_step, tmp_path):
    """Even where the template does not say where a user begins."""
    check, tokens = make_check(first_step, tmp_path, template=None)
    with pytest.raises(SystemExit, match="planned those of the assistant alone"):
        check.check_turns([tokens], [tokens])


@pytest.mark.parametrize("template", [HEADERS, "<|system|> hello <|end|> " + HEADERS], ids=["plain", "system first"])
def test_header_of_a_user(first_step, template):
    header = first_step.find_user_header(make_tokenizer(template))
    assert header.endswith("<|user|>") and "assistant" not in header and "system" not in header


def refuse_unless(condition: str) -> str:
    return "{% if not (" + condition + ") %}{{ raise_exception('no') }}{% endif %}" + HEADERS


@pytest.mark.parametrize("condition", ["messages[0]['role'] == 'system'", "messages[-1]['role'] == 'assistant'"])
def test_header_under_a_template_that_wants_certain_turns(first_step, condition):
    assert first_step.find_user_header(make_tokenizer(refuse_unless(condition))).endswith("<|user|>")


@pytest.mark.parametrize(
    "template", [refuse_unless("tools"), "{{ 1 / 0 }}", "fixed", HEADERS.replace("]", "] | upper")]
)
def test_a_template_that_shows_no_header_is_no_end_of_the_run(first_step, tmp_path, capsys, template):
    """TemplateError, ZeroDivisionError, IndexError in the middle of the first step."""
    check, tokens = make_check(first_step, tmp_path, template)
    check.check_turns([tokens], [[-100, *tokens[1:]]])
    assert capsys.readouterr().out.startswith("not checked: what is learned from of a user's turns")


def test_no_template_no_header(first_step):
    assert first_step.find_user_header(make_tokenizer(None)) == ""


def test_packed_states_stand_beside_small_ones(first_step):
    import torch

    small, packed = torch.zeros(9), torch.zeros(4, dtype=torch.uint8)
    assert first_step.has_dtype([small, packed], "uint8")
    assert not first_step.has_dtype([small], "uint8")


@pytest.mark.parametrize("optim", ["adamw_8bit", "paged_adamw_8bit", "lion_8bit"])
def test_adapters_that_are_too_small_to_pack(first_step, tmp_path, capsys, optim):
    """Their states are float32: the check ended the run ("float32, planned uint8")."""
    pytest.importorskip("bitsandbytes")
    trainer = make_trainer(tmp_path, adapters=True, optim=optim)
    train(first_step, trainer, frozen="float32", states="uint8")
    assert "states float32" in capsys.readouterr().out


def test_adapters_that_are_large_enough_to_pack(first_step, tmp_path):
    trainer = make_trainer(tmp_path, adapters=True, optim="adamw_torch", rank=128)
    words = stop_of(first_step, trainer, frozen="float32", states="uint8")
    assert "dtype of the optimizer's states: float32, planned uint8" in words


STATES = list_optimizer_states()
EXPECTED = {
    "mixed precision": (
        Execution(weights_dtype="float32", autocast_dtype="bfloat16"),
        ("float32", None, "float32", "float32"),
    ),
    "pure bf16": (Execution(weights_dtype="bfloat16"), ("bfloat16", None, "bfloat16", "bfloat16")),
    "8-bit states": (Execution(optimizer=STATES["adamw-8bit"]), ("float32", None, "float32", "uint8")),
    "adafactor in bf16": (
        Execution(weights_dtype="bfloat16", optimizer=STATES["adafactor"]),
        ("bfloat16", None, "bfloat16", "float32"),
    ),
    "ademamix in bf16": (
        Execution(weights_dtype="bfloat16", optimizer=STATES["ademamix"]),
        ("bfloat16", None, "bfloat16", "float32"),
    ),
    "lomo": (Execution(optimizer=STATES["lomo"]), ("float32", None, None, None)),
    "sgd": (Execution(optimizer=STATES["sgd"]), ("float32", None, "float32", None)),
    "qlora": (
        Execution(train="lora", quant="nf4", weights_dtype="float16", autocast_dtype="float16"),
        ("float32", "uint8", "float32", "float32"),
    ),
    "lora in shards": (
        Execution(train="lora", weights_dtype="bfloat16", autocast_dtype="bfloat16", strategy="fsdp_full_shard", dp=8),
        ("float32", "bfloat16", "float32", "float32"),
    ),
    "zero2": (
        Execution(weights_dtype="float32", autocast_dtype="bfloat16", strategy="zero2", dp=8, sums_dtype="float32"),
        ("bfloat16", None, "float32", "float32"),
    ),
    "zero3, summed as stored": (
        Execution(weights_dtype="float32", autocast_dtype="bfloat16", strategy="zero3", dp=8),
        ("bfloat16", None, "bfloat16", "float32"),
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_expected_dtypes(name):
    run, dtypes = EXPECTED[name]
    expected = expect_dtypes(run)
    assert tuple(expected[kind] or None for kind in ("trained", "frozen", "gradients", "states")) == dtypes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("technique", list_installed_optimizers(), ids=lambda technique: technique.name)
def test_states_of_each_optimizer_that_is_installed(first_step, tmp_path, technique, dtype):
    """AdEMAMix keeps float32 states of any weights: with precision=bf16-pure the check ended the run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    trainer = make_trainer(tmp_path, optim=technique.optim, **technique.arguments)
    trainer.model = trainer.model_wrapped = LlamaForCausalLM(config).to(getattr(torch, dtype))
    with torch.compiler.set_stance("force_eager"):  # torchao's compile their step for minutes
        trainer.train()
    states = sys.modules["model_states"].list_model_states(trainer)["states"]
    expected = name_states_dtype(technique.state, dtype)
    assert first_step.has_dtype(states, expected) if expected else not states
    if technique.state.full_states or technique.name == "ademamix":
        planned = compute_state_bytes(
            technique.state, trainer.model.num_parameters(), 4 if dtype == "float32" else 2, 64
        )
        assert sum(state.nbytes for state in states) == pytest.approx(planned, rel=0.1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_head_that_is_trained_beside_adapters_is_float32_too(dtype):
    """PEFT widens adapters alone; the plan, fp16's scaler and small updates want all that trains in float32."""
    import torch
    from making import H100, case
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from generator.techniques.trained.lora import Lora

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    names = {
        "model": LlamaForSequenceClassification(config).to(getattr(torch, dtype)),
        "get_peft_model": get_peft_model,
        "adapter": LoraConfig(task_type="SEQ_CLS", target_modules="all-linear"),
    }
    for statement in Lora().edits(case(H100, task="text-classification", train="lora")).after_model:
        if not statement.startswith("warn_of_untrained"):  # what the data has no part in
            exec(statement, names)
    trained = {name: weight.dtype for name, weight in names["model"].named_parameters() if weight.requires_grad}
    assert any("score" in name for name in trained)
    assert set(trained.values()) == {torch.float32}
