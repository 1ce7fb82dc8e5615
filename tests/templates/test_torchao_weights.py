"""Weights of torchao as a plan has them written: what is packed, what is computed, and what Inductor must be told for it."""

import threading

import pytest
from making import A100, case, llama

from generator.techniques.base import find_technique

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
quantization = pytest.importorskip("torchao.quantization")

SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}


def configure(name):
    """What the lines of a technique make, as a script runs them."""
    written = find_technique("quantization", name).edits(case(A100, llama(), mode="infer"))
    names: dict = {}
    exec("\n".join((*written.infer_imports, *written.infer_setup)), names)
    return names["quantization"]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=320, num_key_value_heads=2, initializer_range=0.2, **SIZES)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def load(folder, **more):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more).eval()


def test_8_bits_are_of_every_product_but_the_output_layers(folder):
    model = load(folder, quantization_config=configure("torchao-int8"))
    kinds = {name: type(m.weight).__name__ for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert kinds.pop("lm_head") == "Parameter"
    assert set(kinds.values()) == {"Int8Tensor"} and len(kinds) == 14
    weight = model.model.layers[0].mlp.down_proj.weight
    assert (weight.qdata.dtype, weight.scale.dtype, tuple(weight.scale.shape)) == (torch.int8, torch.float32, (64, 1))


@torch.inference_mode()
def test_8_bits_compute_nearly_what_16_do(folder):
    tokens = torch.randint(0, 320, (1, 40), generator=torch.Generator().manual_seed(1))
    right = load(folder)(tokens).logits.float()
    packed = load(folder, quantization_config=configure("torchao-int8"))(tokens).logits.float()
    spread = (right - right.mean()).norm()
    assert 0 < float((packed - right).norm() / spread) < 0.05


def test_4_bits_are_asked_for_in_the_packing_that_torch_multiplies():
    """The default one multiplies by MSLK's kernels, which the stack has not."""
    asked = configure("torchao-int4").quant_type
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    assert asked.int4_packing_format == Int4PackingFormat.TILE_PACKED_TO_4D
    assert asked.group_size == 32 and quantization.Int4WeightOnlyConfig().int4_packing_format == Int4PackingFormat.PLAIN


def test_inductor_is_told_by_the_mode_and_not_by_whoever_quantized(folder):
    """torchao sets what fuses unpacking with a product in the thread that loads; a server compiles in another."""
    config = torch._inductor.config
    before = config.coordinate_descent_tuning
    seen: dict[str, bool] = {}

    def quantize():
        load(folder, quantization_config=configure("torchao-int8"))
        seen["there"] = config.coordinate_descent_tuning

    thread = threading.Thread(target=quantize)
    thread.start()
    thread.join()
    assert seen["there"] and config.coordinate_descent_tuning == before
    mode = find_technique("compile", "tuned-decode").effects(case(A100, llama(), mode="infer"))["compile"]
    assert torch._inductor.list_mode_options(mode)["coordinate_descent_tuning"]
