"""Beneath adapters on 4-bit weights, embedding and head keep the model's dtype: planned, emitted, and so in the library."""

from __future__ import annotations

import pytest
from making import case, cpu_device, llama

from generator.decide.serving import plan_case
from generator.emit.config_yaml import build_lora_config
from generator.techniques.trained.qlora import KEEP_GRADIENTS
from hwdetect import catalog

RTX_4090 = catalog.load("rtx-4090")
QLORA = {"train": "qlora", "seq_len": 1024, "global_batch": 2}
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


def find_weights_gib(task: str, **more) -> float:
    estimate = plan_case(case(RTX_4090, llama(), task=task, **QLORA, **more)).best.estimate
    return next(part.value for part in estimate.memory if part.name == "weights")


def test_the_plan_counts_embedding_and_head_in_16_bits():
    """They were float32 without TRL: 1.96 GiB more of an 8B model."""
    assert find_weights_gib("causal-lm") == pytest.approx(find_weights_gib("sft", loss_on="all"), rel=1e-6)
    assert find_weights_gib("causal-lm") == pytest.approx(5.47, abs=0.05)


@pytest.mark.parametrize("task", ["causal-lm", "text-classification"])
def test_nothing_emitted_upcasts_what_is_frozen(task):
    plan = plan_case(case(RTX_4090, llama(), task=task, **QLORA))
    text = "\n".join((*plan.edits.imports, *plan.edits.after_model))
    assert "get_peft_model(model, adapter)" in text and "kbit" not in text
    assert ("weight.data.float()" in text) == (task == "text-classification"), "a head that is trained is float32"


def test_adapters_drop_nothing_out_unless_the_owner_says_so():
    plan = plan_case(case(RTX_4090, llama(), task="causal-lm", **QLORA))
    assert build_lora_config(plan).lora_dropout == plan.best.execution.lora_dropout == 0.0


def test_peft_freezes_a_quantized_model_and_leaves_its_dtypes(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("bitsandbytes")
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=nf4, dtype=torch.bfloat16)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).train()
    adapted.activation_checkpointing_enable({"use_reentrant": False})
    dtypes = {name.rsplit(".", 2)[-2]: p.dtype for name, p in adapted.named_parameters()}
    assert dtypes["embed_tokens"] == dtypes["lm_head"] == dtypes["norm"] == torch.bfloat16
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name and p.dtype == torch.float32 for name, p in trained.items())
    tokens = torch.randint(2, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        adapted(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained.values())


def test_an_evaluation_leaves_gradients_on_a_cpu():
    """bitsandbytes packs weights in eval mode where a CPU has AVX512-BF16, for a kernel that no gradient passes: adapters of all
    layers but the last would stand still after the first evaluation."""
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    plan = plan_case(case(cpu_device(bf16=True), llama(**SMALL), task="causal-lm", **QLORA))
    assert (
        plan.edits.after_model[-1] == KEEP_GRADIENTS and "from bitsandbytes.nn import Linear4bit" in plan.edits.imports
    )
    weight = torch.randn(
        48, 64, generator=torch.Generator().manual_seed(0)
    )  # 48 outputs: what the packed kernel refuses
    layer = bitsandbytes.nn.Linear4bit(64, 48, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=layer)
    layer.to("cpu").support_avx512bf16_for_cpu = True  # as on a CPU that has it, whatever this one has
    model = torch.nn.Sequential(layer)
    exec(KEEP_GRADIENTS, {"model": model, "Linear4bit": bitsandbytes.nn.Linear4bit})
    rows = torch.ones(2, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.no_grad():
        model.eval()(rows.detach())
    model.train()(rows).sum().backward()
    assert rows.grad is not None and rows.grad.abs().sum() > 0


def test_nothing_of_a_cpu_is_emitted_for_a_gpu():
    assert KEEP_GRADIENTS not in plan_case(case(RTX_4090, llama(), task="causal-lm", **QLORA)).edits.after_model


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_an_answer_on_a_cpu_reads_the_weights_that_were_trained_on(tmp_path, adapter):
    """Packed anew for a kernel of CPUs with AVX512-BF16 they were other weights to DoRA, and of 176 outputs an error."""
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(torch.bfloat16).save_pretrained(tmp_path)
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    of = case(cpu_device(bf16=True), llama(**SMALL), task="causal-lm", adapter=adapter, **QLORA)
    statements = plan_case(of).serving.edits.infer_after_model
    logits = []
    for packs in (True, False):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=nf4, dtype=torch.bfloat16)
        torch.manual_seed(1)
        form = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, use_dora=adapter == "dora")
        model = get_peft_model(model, form).eval()
        for layer in model.modules():
            if isinstance(layer, bitsandbytes.nn.Linear4bit) and not packs:
                layer.support_avx512bf16_for_cpu = False
        exec("\n".join(statements), {"model": model, "Linear4bit": bitsandbytes.nn.Linear4bit})
        with torch.inference_mode():
            logits.append(model(torch.arange(3, 19)[None]).logits.float())
    assert torch.allclose(*logits, atol=0.1 * logits[1].abs().max().item())


def test_processes_on_cpus_have_no_device_of_their_own():
    """`device_map={"": 0}` is a GPU: QLoRA by DDP on two CPUs ended as it loaded."""
    from dataclasses import replace

    from generator.case.layout import Layout
    from generator.techniques.trained.qlora import place_on_own_device

    two = Layout(strategy="ddp", per_node=2, replicate=2)
    assert place_on_own_device(replace(case(cpu_device(), devices=2, **QLORA), layout=two)) == ()
    assert place_on_own_device(replace(case(RTX_4090, devices=2, **QLORA), layout=two))
