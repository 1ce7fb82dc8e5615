"""Projects of hub models and hub data, run for real against a hub on localhost: init, train.py, infer.py, again without the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import load_leaf
from local_hub import serve_hub

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "hf_" + "secret" * 6
OWN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
WORDS = "the quick brown fox jumps over the lazy dog and asks: how much is it?"
ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"how much is {n}?"},
            {"role": "assistant", "content": f"it is {n} dogs"},
        ]
    }
    for n in range(40)
]


def make_model(folder: Path, template: str | None, begins: bool) -> Path:
    """A Llama of two layers with trained-looking weights and a byte-level tokenizer, as `save_pretrained` writes them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    bpe.train_from_iterator([WORDS], trainer)
    if begins:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        **sizes, vocab_size=len(tokenizer), max_position_embeddings=256, bos_token_id=0, eos_token_id=1
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Machine:
    """Commands with this hub, a cache of their own, and a token in the environment alone."""

    def __init__(self, hub, folder: Path):
        self.hub, self.folder, self.home = hub, folder, folder / "home"

    def run(self, *command: str, cwd: Path | None = None, code: int = 0, **environment: str) -> str:
        names = ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE")
        clean = {name: value for name, value in os.environ.items() if name not in names}
        hub = {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        own = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=cwd or self.folder,
            env=clean | hub | own | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def init(self, *more: str, code: int = 0, **environment: str) -> str:
        small = ("--task", "sft", "--global-batch", "4", "--max-steps", "2", "--seq-len", "128", "--no-smoke")
        pins = ("--pin", "compile=off", "--pin", "precision=fp32")
        command = ("-m", "generator.cli", "init", self.folder / "p", *small, *pins, *more)
        return self.run(*command, code=code, **environment)


@pytest.fixture
def machine(tmp_path):
    with serve_hub() as hub:
        yield Machine(hub, tmp_path)


def relax_fingerprint(project: Path) -> None:
    """What is planned for a big machine runs on this one; the model is tiny."""
    import yaml

    config = yaml.safe_load((project / "config.yaml").read_text())
    config["machine"]["memory_gib"] = config["machine"]["needs_gib"]
    (project / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def test_init_says_in_one_line_what_the_hub_denies(machine):
    """The command itself, in a process of its own, with nothing replaced."""
    machine.hub.add("models", "owner/model", {"config.json": "{}"}, gated=TOKEN)
    said = machine.init("--model", "owner/model", "--data", "owner/set", code=4)
    assert "owner/model is gated, and no token was given" in said and "HF_TOKEN" in said and "Traceback" not in said
    assert not (machine.folder / "p").exists()


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["template of its own", "none"])
def test_a_private_model_and_set_are_planned_trained_and_asked_then_again_offline(machine, own):
    model = make_model(machine.folder / "model", OWN_TEMPLATE if own else None, begins=True)
    names = ("train.jsonl", "test.jsonl")
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    first = machine.hub.add("models", "owner/model", model, token=TOKEN)
    data = machine.hub.add("datasets", "owner/set", dict.fromkeys(names, rows), token=TOKEN)
    pinned, pinned_data = first.head, data.head
    token = {"HF_TOKEN": TOKEN}
    said = machine.init("--model", "owner/model", "--data", "owner/set", **token)
    assert ("has no chat template" in said) is not own and "split train" in said
    project = machine.folder / "p"
    relax_fingerprint(project)
    config = (project / "config.yaml").read_text()
    assert (
        f"revision: {pinned}" in config and f"data_revision: {pinned_data}" in config and "data_split: train" in config
    )

    first.commit({"config.json": b"{}"})  # the newest versions are of no use: the project takes those that were read
    data.commit({"train.jsonl": b"not JSON"})
    trained = machine.run("train.py", cwd=project, **token)
    assert ("The tokenizer has no chat template" in trained) is not own
    saved = read_template(project / "runs")
    assert (project / "runs" / "checkpoint-2").is_dir() and (project / "runs" / "run.json").is_file()
    if own:
        assert saved == OWN_TEMPLATE.encode(), "byte for byte"
    check_beginning(project / "runs")

    seen = len(machine.hub.requests)
    offline = {"HF_HUB_OFFLINE": "1"}
    machine.run("train.py", "--max_steps", "4", cwd=project, **offline)
    assert json.loads((project / "runs" / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4
    answer = machine.run("infer.py", "--max_new_tokens", "3", cwd=project, **offline)
    assert answer and "has no chat template" not in answer, "the run's tokenizer has it"
    assert len(machine.hub.requests) == seen, "nobody was asked"
    assert read_template(project / "runs") == saved

    asked = machine.hub.requests
    assert {auth for _, path, auth in asked if "/lfs/" not in path} == {f"Bearer {TOKEN}"}
    assert {auth for _, path, auth in asked if "/lfs/" in path} == {None}, "no token leaves the hub"
    written = [p for p in machine.folder.rglob("*") if p.is_file() and not p.is_symlink()]
    assert not [p for p in written if TOKEN.encode() in p.read_bytes()]


def read_template(run: Path) -> bytes:
    return (run / "chat_template.jinja").read_bytes()


def check_beginning(run: Path) -> None:
    """A conversation begins with one BOS, as a text of this tokenizer does, and an answer ends with the end token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run)
    ids = tokenizer.apply_chat_template(ROWS[3]["messages"], return_dict=True)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    answer = ids.index(tokenizer.eos_token_id)
    assert tokenizer.decode(ids[:answer]).endswith("it is 3 dogs")


@pytest.mark.parametrize("begins", [True, False])
def test_the_template_of_a_tokenizer_without_one_keeps_bos_as_the_tokenizer_does(tmp_path, begins, capfd):
    """The leaf itself."""
    from transformers import AutoTokenizer

    folder = make_model(tmp_path / "m", None, begins)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    load_leaf("chat_template").ensure_chat_template(tokenizer)
    assert "has no chat template" in capfd.readouterr().err
    marked = tokenizer.apply_chat_template(ROWS[3]["messages"], return_dict=True, return_assistant_tokens_mask=True)
    ids, learnt = marked["input_ids"], marked["assistant_masks"]
    assert ids.count(tokenizer.bos_token_id) == int(begins) and (ids[0] == tokenizer.bos_token_id) is begins
    assert tokenizer.decode([i for i, mark in zip(ids, learnt, strict=True) if mark]) == "it is 3 dogs</s>"
    prompt = tokenizer.apply_chat_template(ROWS[3]["messages"][:1], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert ids[: len(prompt)] == prompt, "an answer begins where the prompt ends"
    load_leaf("chat_template").ensure_chat_template(tokenizer)
    assert not capfd.readouterr().err
    tokenizer.chat_template = OWN_TEMPLATE
    load_leaf("chat_template").ensure_chat_template(tokenizer)
    assert tokenizer.chat_template == OWN_TEMPLATE


LOAD = "import yaml, data; print('ROWS', len(data.load_examples(yaml.safe_load(open('config.yaml')))))"


@pytest.mark.slow
def test_what_was_not_looked_at_is_chosen_when_it_is_loaded(machine):
    """Planned offline; the set has one split, which is no train, then several."""
    (machine.folder / "model").mkdir()
    sizes = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 300,
    }
    heads = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "max_position_embeddings": 256}
    (machine.folder / "model" / "config.json").write_text(json.dumps(sizes | heads))
    (machine.folder / "model" / "tokenizer.json").write_text("{}")
    said = machine.init("--model", machine.folder / "model", "--data", "owner/set", "--offline")
    assert "owner/set was not looked at (offline)" in said
    project = machine.folder / "p"
    assert "data_split: null" in (project / "config.yaml").read_text()
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    repo = machine.hub.add("datasets", "owner/set", {"data/only-00000-of-00001.jsonl": rows})
    assert "ROWS 40" in machine.run("-c", LOAD, cwd=project)
    assert "ROWS 40" in machine.run("-c", LOAD, cwd=project, HF_HUB_OFFLINE="1")
    repo.commit({f"data/{name}-00000-of-00001.jsonl": rows.encode() for name in ("sft", "gen")})
    said = machine.run("-c", LOAD, cwd=project, code=1)
    assert (
        "owner/set has the splits gen, sft: name one in config.yaml (data_split)." in said and "Traceback" not in said
    )
    card = {"configs": [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("en", "fr")]}
    files = {
        "README.md": f"---\n{json.dumps(card)}\n---\n".encode(),
        "en.jsonl": rows.encode(),
        "fr.jsonl": rows.encode(),
    }
    repo.commit(files)
    said = machine.run("-c", LOAD, cwd=project, code=1)
    assert "owner/set, data_config in config.yaml: " in said and "'en', 'fr'" in said and "Traceback" not in said
    repo.commit({"train.jsonl": b'{"text": "a"}\n'})
    said = machine.run("-c", LOAD, cwd=project, code=1)
    assert "no list of messages in column 'messages', only text" in said and "Traceback" not in said
