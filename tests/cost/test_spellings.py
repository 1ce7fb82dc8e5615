"""What people write in a table of runs costs what the tables' own words do."""

from __future__ import annotations

import pytest

from generator.case.strategies import STRATEGIES
from generator.estimate.rows import Uncostable, read_row
from generator.estimate.spellings import fold, load_spellings, spell_row
from generator.model import describe
from generator.model.catalog import load_catalog
from generator.techniques.base import list_axes
from tests.cost.test_cases import ROW

TRAINED = ROW | {"phase": "train", "gpus_per_node": "8", "dp": "8", "strategy": "fsdp_full_shard"}


def run(**stated: str):
    return read_row(TRAINED | stated).execution


@pytest.mark.parametrize(
    ("written", "fixed"),
    [
        ({"strategy": "DDP"}, {"strategy": "ddp"}),
        ({"strategy": "FSDP"}, {}),
        ({"strategy": "DeepSpeed ZeRO-3"}, {"strategy": "zero3"}),
        ({"strategy": "deepspeed_zero3_offload"}, {"strategy": "zero3", "offload": "optimizer,param"}),
        ({"strategy": "zero3", "offload": "all-cpu"}, {"strategy": "zero3", "offload": "optimizer,param"}),
        ({"strategy": "tp+dp", "tp": "2", "dp": "4"}, {"strategy": "tensor_pipeline_data", "tp": "2", "dp": "4"}),
        ({"strategy": "tensor", "dp": ""}, {"strategy": "tensor_pipeline_data", "tp": "8", "dp": "1"}),
        ({"strategy": "3D", "tp": "2", "pp": "2", "dp": "2"}, {"strategy": "tensor_pipeline_data", "tp": "2", "pp": "2", "dp": "2"}),
        ({"train": "QLoRA"}, {"train": "lora", "quant": "bnb-nf4"}),
        ({"train": "lora", "quant": "4bit"}, {"train": "lora", "quant": "bnb-nf4"}),
        ({"train": "qlora", "quant": "int8"}, {"train": "lora", "quant": "int8"}),
        ({"optimizer": "adamw_bnb_8bit"}, {"optimizer": "adamw-8bit"}),
        ({"optimizer": "AdamW"}, {"optimizer": "adamw"}),
        ({"activation_checkpointing": "True"}, {"activation_checkpointing": "full"}),
        ({"activation_checkpointing": "off"}, {"activation_checkpointing": "none"}),
        ({"attention": "FA2"}, {"attention": "flash_attention_2"}),
        ({"compile": "True"}, {"compile": "true"}),
        ({"weights_dtype": "", "autocast_dtype": "bf16-mixed"}, {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}),
    ],
    ids=lambda stated: " ".join(stated.values()) or "same",
)  # fmt: skip
def test_what_people_write_is_read_as_the_tables_say_it(written: dict[str, str], fixed: dict[str, str]) -> None:
    assert run(**written) == run(**fixed)


def test_fsdp2_is_of_the_second_version() -> None:
    assert run(strategy="fsdp2") == run().but(fsdp_version=2) != run()
    sizes = {"tp": "2", "dp": "4"}
    assert run(strategy="fsdp2+tp", **sizes) == run(**sizes).but(fsdp_version=2)


@pytest.mark.parametrize(
    "column, word",
    [
        ("strategy", "galvatron"),
        ("optimizer", "shampoo"),
        ("train", "prefix"),
        ("quant", "hqq-3bit"),
        ("attention", "sage"),
        ("compile", "maybe"),
        ("fused_kernels", "apex"),
        ("offload", "disk"),
        ("activation_checkpointing", "some"),
        ("weights_dtype", "int8"),
    ],
)
def test_a_word_without_a_formula_is_refused_by_name(column: str, word: str) -> None:
    with pytest.raises(Uncostable, match=word):
        read_row(TRAINED | {column: word})


def test_what_a_plan_calls_its_ways_to_divide_and_to_update_is_read() -> None:
    """Their own names are the first that a user of plans tries. Generation's and XLA's have columns of their own."""
    others = {"spmd", "device-map", "device-map-offload", "served", "served-copies"}
    for axis in list_axes():
        if axis.name == "parallelism":
            for name in {each.name for each in axis.members} - others:
                read_row(TRAINED | {"strategy": name})
        if axis.name == "optimizer":
            for each in axis.members:
                read_row(TRAINED | {"optimizer": each.name})


SIZES = ("params_b", "n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab")


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Llama-3.1-8B", "META-LLAMA/llama-3.1-8b"])
def test_a_published_model_has_its_sizes_from_the_catalogue(name: str) -> None:
    row = read_row(TRAINED | dict.fromkeys(SIZES, "") | {"model": name})
    assert row.spec == describe(dict(load_catalog()["meta-llama/Llama-3.1-8B"].config), name="meta-llama/Llama-3.1-8B")
    with pytest.raises(Uncostable, match=r"no 'Llama-3\.1-9B'"):
        read_row(TRAINED | dict.fromkeys(SIZES, "") | {"model": "Llama-3.1-9B"})


def test_every_spelling_stands_for_words_that_are_read() -> None:
    for column, words in load_spellings().items():
        for word, stands_for in words.items():
            assert word == fold(word), "written as it is compared"
            spelled = spell_row({column: word})
            assert spelled == {column: word} | dict(stands_for)
            assert spell_row(spelled) == spelled, "said once"
    named = {each["strategy"] for each in load_spellings()["strategy"].values()}
    assert named <= {*STRATEGIES, "tensor_pipeline_data"}
