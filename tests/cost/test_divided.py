"""What the fullest process of a divided model holds, against Transformers' own plans for tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from generator.cost.execution import Execution
from generator.cost.memory import compute_training_moments
from generator.cost.shape import build_shape
from generator.cost.stages import compute_fullest_share, count_kept_layers, split_layers
from generator.cost.static_memory import compute_static_memory
from generator.model import describe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
RUN = Execution(
    weights_dtype="float32", autocast_dtype="bfloat16", own_loop=True, sequence_parallel=False, accumulation=16
)


def make_model(kind: str, *, tied: bool, layers: int = 8):
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, num_hidden_layers=layers, vocab_size=6000, head_dim=64, tie_word_embeddings=tied
    )
    with torch.device("meta"):
        return getattr(transformers, f"{kind}ForCausalLM")(config)


def count_held(model, tp: int, pp: int) -> int:
    """Parameters of the fullest process, each matrix divided as the model's own plan says, and each stage as division.py cuts it."""
    shape = build_shape(describe(model.config.to_dict(), "x"), "causal-lm", 0)
    layers = split_layers(8, pp, shape.head_params / shape.block_params) if pp > 1 else (8,)
    held = []
    for stage in range(pp):
        first = sum(layers[:stage])
        numbers = range(first, first + layers[stage])
        here = 0
        for name, weight in model.named_parameters(remove_duplicate=False):
            part = name.split(".")
            in_stage = (
                int(part[2]) in numbers
                if part[1] == "layers"
                else stage == 0
                if part[1] == "embed_tokens"
                else stage == pp - 1
            )
            divided = any(
                fnmatchcase(name.rsplit(".", 1)[0], pattern) and style.startswith(("colwise", "rowwise", "embedding"))
                for pattern, style in model.tp_plan.items()
            )
            if name == "lm_head.weight" and model.config.tie_word_embeddings:
                in_stage = in_stage and pp > 1  # one weight with the embedding
            here += weight.numel() // (tp if divided else 1) if in_stage else 0
        held.append(here)
    return max(held)


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (1, 4), (2, 4)])
def test_the_fullest_process_is_what_is_planned_for(kind, tied, tp, pp):
    model = make_model(kind, tied=tied)
    shape = build_shape(describe(model.config.to_dict(), "x"), "causal-lm", 0)
    run = replace(RUN, tp=tp, pp=pp)
    planned = compute_fullest_share(shape, run) * shape.params / run.parts
    assert planned == pytest.approx(count_held(model, tp, pp), rel=0.01)  # norms are whole, and few
    static = compute_static_memory(shape, run)
    assert static.weights == pytest.approx(4 * planned) and static.gradients == pytest.approx(static.weights)


@pytest.mark.parametrize("layers", [8, 10, 13])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_stage_with_most_layers_has_the_adapters_that_are_planned_for(layers, stages):
    """Counted on PEFT's own model, cut as division.py cuts it."""
    peft = pytest.importorskip("peft")
    model = make_model("Llama", tied=False, layers=layers)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    shape = build_shape(describe(model.config.to_dict(), "x"), "causal-lm", 0)
    run = replace(RUN, pp=stages, train="lora", lora_rank=8, lora_targets="all-linear")
    cut = split_layers(layers, stages, shape.head_params / shape.block_params)
    held = []
    for stage in range(stages):
        numbers = range(sum(cut[:stage]), sum(cut[: stage + 1]))
        trained = [(name, w) for name, w in adapted.named_parameters() if w.requires_grad]
        held.append(sum(w.numel() for name, w in trained if int(name.split(".layers.")[1].split(".")[0]) in numbers))
    static = compute_static_memory(shape, run)
    counted = pytest.approx((4 * max(held), 8 * max(held)), rel=1e-9)
    assert (static.gradients, static.states) == counted
    frozen = compute_static_memory(shape, replace(run, lora_rank=16)).weights - static.weights
    assert frozen == pytest.approx(4 * max(held))  # as many adapters again, and nothing of the base
    assert max(held) > sum(held) / stages  # the output layer is worth layers: no stage has an equal share


def test_activations_are_those_of_the_stage_that_keeps_most():
    """13 layers on 4 stages: 4, 4, 4 and 1. The first has started four micro-batches, the last one."""
    shape = build_shape(describe(make_model("Llama", tied=False, layers=13).config.to_dict(), "x"), "causal-lm", 0)
    run = replace(RUN, pp=4, accumulation=8)
    cut = split_layers(13, 4, shape.head_params / shape.block_params)
    assert count_kept_layers(shape, run) == max((4 - stage) * n for stage, n in enumerate(cut))
    assert count_kept_layers(shape, replace(run, accumulation=1)) == max(cut)
    assert count_kept_layers(shape, replace(run, own_loop=False)) == 13  # four micro-batches of a quarter


def test_tensor_parts_have_hidden_states_whole_and_the_logits_of_their_words():
    """Transformers' plans divide no hidden states (no sequence_parallel); logits stay where they are made (vocabulary_parts.py)."""
    shape = build_shape(describe(make_model("Llama", tied=False).config.to_dict(), "x"), "causal-lm", 0)
    tokens, ways = 512, 4
    alone, parts = (
        compute_training_moments(shape, run, compute_static_memory(shape, run))["loss"]
        for run in (replace(RUN, tp=tp, micro_batch=1, seq_len=tokens, checkpoint_every=1) for tp in (1, ways))
    )
    # bf16, float32 and the softmax: resident memory of a step grew by 10.1 bytes a logit, and in float32 by 8.1
    each = 2 + 4 + 4
    logits = 3 * 4  # log-softmax, its gradient and that of the logits
    states = alone["loss"] - tokens * shape.head_outputs * logits
    assert parts["loss"] == pytest.approx(states + tokens * shape.head_outputs / ways * each)
    assert parts["kept activations"] == pytest.approx(alone["kept activations"])


def test_tensor_parts_have_one_factor_of_each_adapter_whole():
    """Of the model of tests/test_loop_projects.py its first step counted 0.000193 GiB on each of two processes, and 0.000278 on one."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=512, tie_word_embeddings=False)
    shape = build_shape(describe(config.to_dict(), "x"), "causal-lm", 0)
    asked = replace(RUN, train="lora", lora_rank=16, lora_targets="all-linear", own_loop=True)
    static = [compute_static_memory(shape, replace(asked, tp=tp)) for tp in (1, 2)]
    for one, half in zip(*[(x.gradients, x.states) for x in static], strict=True):
        assert half / one == pytest.approx(193 / 278, rel=0.01)


def test_tensor_parts_that_divide_the_tokens_keep_a_part_of_each():
    """And the inputs of attention and feed-forward whole, which are gathered for them (token_parts.py)."""
    shape = build_shape(describe(make_model("Llama", tied=False).config.to_dict(), "x"), "causal-lm", 0)
    asked = replace(RUN, tp=4, micro_batch=1, seq_len=512, sequence_parallel=True)

    def kept(run):
        return compute_training_moments(shape, run, compute_static_memory(shape, run))["loss"]["kept activations"]

    again = replace(asked, checkpoint_every=1)
    assert kept(again) == pytest.approx(kept(replace(again, sequence_parallel=False)) / 4)
    gathered = 3 / 4 * 512 * 2 * 2 * shape.hidden * shape.layers  # two inputs of a block, in bf16
    assert kept(asked) == pytest.approx(kept(replace(asked, own_loop=False)) + gathered)


def test_the_stage_with_the_loss_has_one_micro_batch_under_way():
    """And each has sent on what it computed, of which it keeps the output until the gradient is back."""
    shape = build_shape(describe(make_model("Llama", tied=False).config.to_dict(), "x"), "causal-lm", 0)
    run = replace(RUN, pp=4, micro_batch=1, seq_len=512, checkpoint_every=1)
    moments = compute_training_moments(shape, run, compute_static_memory(shape, run))
    hidden = 512 * 256 * 4
    first = moments["last block"]["kept activations"]
    assert first == pytest.approx((4 * 2 + 4 + 1) * hidden)  # four times: inputs of two layers, an output; one gradient
    assert moments["loss"]["kept activations"] == pytest.approx(first / 4)
