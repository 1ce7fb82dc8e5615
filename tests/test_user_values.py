"""What the user gave and what perfgen chose: two answers that are asked, lengths from the data, where a value comes from, totals."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from generator.case.defaults import choose_seq_len, count_steps, measure_cut_share
from generator.case.request import Request
from generator.case.sources import read_work
from generator.cli import main, perfgen
from generator.cost.lengths import expect_longest
from generator.emit.asked import merge_requests
from generator.emit.plan_json import to_json
from generator.errors import UsageError
from generator.inputs.lengths import find_tokenizer_file
from generator.pipeline import document_request
from hwdetect.cloud import find_instance

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "examples" / "models"
CHATS = ROOT / "examples" / "data" / "chats.jsonl"
LLAMA = {"model": "meta-llama/Llama-3.1-8B", "config": str(MODELS / "llama-3.1-8b.json"), "offline": True}


def run_main(monkeypatch, capsys, *arguments: object) -> tuple[int, str]:
    """Exit code and standard error of the program."""
    monkeypatch.setattr(sys, "argv", ["perfgen", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("init", "new"), "--model and --data must be given"),
        (("init", "new", "--model", MODELS / "smollm2-135m.json"), "--data must be given"),
        (("init", "new", "--mode", "infer"), "--model must be given"),
        (("plan",), "--model must be given"),
        (("init", "new", "--sample", "--model", MODELS / "smollm2-135m.json"), "--sample brings a model"),
        (("plan", "--sample", "--task", "sft"), "--task sft needs --data"),
        (("plan", "--sample", "--mode", "infer", "--task", "sft"), "--task sft is not for the embedded sample"),
    ],
)
def test_off_a_terminal_both_answers_are_required(monkeypatch, capsys, tmp_path, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, err = run_main(monkeypatch, capsys, *arguments)
    assert code == 2 and words in err and "Traceback" not in err and str(ROOT) not in err.replace(str(MODELS), "")
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_they_are_asked_for_and_checked_at_once(tmp_path):
    """A pseudo-terminal: a model and data that are not there are asked for again."""
    answers = f"nowhere/../x\n{MODELS / 'smollm2-135m.json'}\nmissing.jsonl\n{CHATS}\n"
    outer, inner = os.openpty()
    os.write(outer, answers.encode())
    done = subprocess.run(
        [sys.executable, "-m", "generator.cli", "init", "new", "--hardware", "cpu:4", "--offline", "--dry-run"],
        stdin=inner,
        stderr=inner,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=200,
    )
    os.close(inner)
    screen = os.read(outer, 1 << 16).decode()
    assert screen.count("Model (folder") == 2 and screen.count("Data (file") == 2, screen
    assert "is no file, no folder and no hub id" in screen
    assert "holds conversations" in screen and ": --task sft" in screen
    assert "use --task sft" not in screen, "the task follows the data that was answered"
    assert done.returncode in (0, 4), screen  # 4: these sizes have no tokenizer, or the task needs another column


def test_labels_that_contradict_the_data_and_data_that_nothing_reads_are_refused(tmp_path, model_folder):
    rows = [{"text": "a", "label": n % 3} for n in range(60)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = {"model": str(model_folder), "data": str(tmp_path / "d.jsonl"), "task": "text-classification"}
    assert read_work(Request(**request, labels=3)).workload.labels == 3
    with pytest.raises(UsageError, match=r"--labels 2: .* has 3 labels"):
        read_work(Request(**request, labels=2))
    with pytest.raises(UsageError, match="is not for --mode infer"):
        read_work(Request(**(request | {"task": "sft"}), mode="infer"))
    served = document_request(Request(model=str(model_folder), task="sft", mode="infer", hardware="cpu:4"))
    assert "inference, text generation" in served.project.summary


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"mode": "infer", "global_batch": 4}, "--global-batch is for training"),
        ({"mode": "infer", "train": "lora"}, "--train is for training"),
        ({"mode": "infer", "lora_rank": 8}, "--lora-rank is for training"),
        ({"mode": "infer", "packing": False}, "--no-packing is for training"),
        ({"mode": "infer", "eval": "none"}, "--eval is for training"),
        ({"mode": "infer", "report_to": "wandb"}, "--report-to is for training"),
        ({"new_tokens": 5}, "--new-tokens is for answers"),
        ({"concurrency": 5}, "--concurrency is for answers\n.*--global-batch is for training"),
        ({"lora_rank": 8}, "--lora-rank 8 is of adapters"),
        ({"labels": 3}, "--labels is not used by --task causal-lm"),
        ({"skip_bad": True}, "--skip-bad is of data"),
        ({"columns": (("text", "x"),)}, "--column is of data"),
        ({"model": None, "mode": "infer", "skip_bad": True}, "--skip-bad is of data"),  # the sample's text is not read
    ],
)
def test_what_nothing_of_this_work_reads_is_refused(words, reason):
    with pytest.raises(UsageError, match=reason):
        document_request(Request(**LLAMA | {"hardware": "8xh100-sxm-80gb"} | words))


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--seq-len", "0"),
        ("detect", "--root", "nowhere"),
        ("smoke", "nowhere"),
        ("detect", "--private"),
        ("detect", "--bogus"),
        ("init", "x", "--full"),
    ],
)
def test_a_refused_value_is_json_too(monkeypatch, capsys, words):
    """Whoever reads --json got nothing where the command line itself was refused."""
    monkeypatch.setattr(sys, "argv", ["perfgen", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["exit_code"] == ended.value.code == 2 and error["message"] in printed.err


def test_another_mode_drops_what_was_asked_of_the_first():
    kept = Request(
        epochs=2.0,
        train="lora",
        lora_rank=8,
        seq_len=64,
        data="d",
        given=("epochs", "train", "lora_rank", "seq_len", "data"),
    )
    merged, dropped = merge_requests(kept, Request(mode="infer", given=("mode",)))
    assert set(dropped) == {"--epochs", "--train", "--lora-rank", "--seq-len", "--data"} and merged.seq_len is None
    kept = Request(
        train="lora", lora_rank=8, lora_dropout=0.1, data="d", given=("train", "lora_rank", "lora_dropout", "data")
    )
    assert set(merge_requests(kept, Request(train="full", given=("train",)))[1]) == {"--lora-rank", "--lora-dropout"}


def test_short_runs_have_a_price_and_runs_without_an_end_have_gpu_hours():
    words = LLAMA | {"hardware": "1xh100-sxm-80gb", "train": "lora"}
    short = document_request(Request(**words, max_steps=1, seq_len=64, global_batch=1)).run
    assert "less than a cent" in short.summary and "0.00 US" not in short.summary
    endless = document_request(Request(**words)).run
    assert endless.gpu_hours is None and f"{endless.gpu_hours_per_1000_steps:,.3g} GPU-hours" in endless.summary


def test_a_value_on_the_command_line_is_given_even_if_it_is_the_default():
    words = ["plan", "--sample", "--hardware", "cpu:4", "--offline", "--json", "--task", "causal-lm", "--epochs", "2"]
    plan = json.loads(CliRunner().invoke(perfgen, words, catch_exceptions=False).stdout)
    workload = plan["case"]["workload"]
    assert workload["task"] == {"value": "causal-lm", "from": "given", "why": "--task"}
    assert workload["epochs"] == {"value": 2.0, "from": "given", "why": "--epochs"}
    for name in ("seq_len", "learning_rate", "global_batch", "train", "warmup", "seed"):
        assert workload[name]["from"] == "default" and workload[name]["why"] == plan["defaults"][name]
        assert workload[name]["value"] == plan["yours"][name]
    assert "task" not in plan["defaults"]


@pytest.fixture
def model_folder(tmp_path) -> Path:
    """A small model with a tokenizer that splits at spaces: as many tokens as words."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((MODELS / "smollm2-135m.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config))
    counter = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    counter.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    counter.save(str(folder / "tokenizer.json"))
    return folder


def write_texts(path: Path, lengths: list[int]) -> str:
    rows = [{"text": " ".join(["longish"] * n), "label": n % 2} for n in lengths]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_length_that_nobody_gave_holds_the_examples_as_the_tokenizer_counts_them(tmp_path, model_folder):
    lengths = [*range(1, 200), 3000]
    data = write_texts(tmp_path / "d.jsonl", lengths)
    work = read_work(Request(model=str(model_folder), data=data, task="text-classification", global_batch=4))
    assert work.data.token_quantiles[50] == pytest.approx(100, rel=0.05)
    assert work.workload.seq_len == 256 and measure_cut_share(work.data, 256) <= 0.01
    assert not work.origins["seq_len"].given and "99 % of the examples" in work.origins["seq_len"].why
    assert "counted with the tokenizer" in work.origins["seq_len"].why
    assert find_tokenizer_file(work.source, None) == model_folder / "tokenizer.json"


def test_without_a_tokenizer_there_is_room_and_conversations_have_their_template():
    work = read_work(Request(**LLAMA, data=str(CHATS), task="sft"))
    needed, why = choose_seq_len(work.request, work.spec, work.data)
    assert needed >= 1.25 * work.data.token_quantiles[99] and "4 bytes a token, assumed" in why
    rows = [json.loads(line) for line in CHATS.read_text(encoding="utf-8").splitlines()]
    shortest = min(sum(len(m["content"]) for m in row["messages"]) / 4 for row in rows)
    assert work.data.token_quantiles[0] > shortest + 30


def test_the_longest_of_a_micro_batch_is_the_expected_maximum():
    rng = random.Random(0)
    draws = sorted(rng.lognormvariate(-2, 0.8) for _ in range(20_000))
    shares = tuple(draws[round(k / 100 * (len(draws) - 1))] for k in range(101))
    for batch in (1, 4, 32):
        simulated = sum(max(rng.choices(draws, k=batch)) for _ in range(4000)) / 4000
        assert expect_longest(shares, batch) == pytest.approx(simulated, rel=0.05)
    assert expect_longest((1.0, 1.0), 8) == pytest.approx(1.0)


def test_what_lengths_save_is_in_the_plan_and_what_is_assumed_is_said():
    common = {**LLAMA, "hardware": "1xrtx-4090", "task": "sft", "train": "lora", "seq_len": 2048}
    read = document_request(Request(**common, data=str(CHATS)))
    assumed = document_request(Request(**common, data="owner/name"))
    assert read.estimate.step_seconds < 0.5 * assumed.estimate.step_seconds
    texts = [note.text for note in assumed.notes if note.kind == "length"]
    assert any("lengths in owner/name are not known: every example is costed as 2,048 tokens" in text for text in texts)
    assert assumed.run.steps is None and "for 1,000 steps" in assumed.run.summary


def test_a_length_far_beyond_the_data_is_compared_with_what_it_needs(tmp_path):
    path = tmp_path / "short.jsonl"
    row = {"messages": [{"role": "user", "content": "a" * 60}, {"role": "assistant", "content": "b" * 60}]}
    path.write_text((json.dumps(row) + "\n") * 64)
    request = Request(**LLAMA, hardware="1xrtx-4090", task="sft", train="lora", seq_len=2048, data=str(path))
    texts = [note.text for note in document_request(request).notes if note.kind == "length"]
    assert any("99 % fit into 128: --seq-len 128 would be" in text for text in texts), texts


@pytest.mark.parametrize(("rows", "epochs"), [(100, 1.0), (36, 10.0), (97, 0.5), (640, 3.0)])
def test_steps_are_those_that_the_trainer_takes_of_what_is_not_held_out(tmp_path, rows, epochs):
    import torch
    from transformers import Trainer, TrainingArguments

    path = tmp_path / "rows.jsonl"
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text((json.dumps({"messages": turn}) + "\n") * rows)
    request = Request(**LLAMA, hardware="1xrtx-4090", task="sft", train="lora", data=str(path), epochs=epochs)
    document = document_request(request)
    args = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=document.batch.micro_batch,
        gradient_accumulation_steps=document.batch.accumulation,
        num_train_epochs=epochs,
        use_cpu=True,
        report_to="none",
    )
    trained = list(range(rows - document.evaluation.rows))
    trainer = Trainer(torch.nn.Linear(1, 1), args, train_dataset=trained, data_collator=list)
    *_, steps = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    assert document.run.steps == document.case.workload.steps == steps


def test_the_whole_run_is_steps_times_a_step_at_the_price_of_the_machine():
    request = Request(**LLAMA, hardware="2xp4de.24xlarge", task="sft", train="lora", seq_len=2048, data=str(CHATS))
    document = document_request(request)
    run = document.run
    work = read_work(request)
    assert run.steps == count_steps(work.workload, work.data) == 20
    assert run.seconds == pytest.approx(20 * document.estimate.step_seconds + run.once_seconds, rel=1e-4)
    assert run.gpu_hours == pytest.approx(run.seconds * document.layout.devices / 3600, rel=1e-4)
    price = find_instance("p4de.24xlarge").price
    assert run.usd_per_hour == pytest.approx(2 * price.usd_per_hour, rel=1e-5) and run.price_read == price.read
    assert run.usd == pytest.approx(run.usd_per_hour * run.seconds / 3600, rel=1e-4)
    assert to_json(document)["run"]["summary"] == run.summary


def test_pods_that_are_not_joined_price_no_run_of_several_nodes():
    """RunPod's A100 are the cheapest, alone; for two nodes of them the next cloud's stand, unless they were asked for by name."""
    options = {**LLAMA, "task": "sft", "train": "lora", "seq_len": 2048, "data": str(CHATS)}
    alone, several, named = (
        document_request(Request(**options, hardware=hardware)).run
        for hardware in ("8xa100-sxm-80gb", "2x8xa100-sxm-80gb", "2x8x_A100-80GB-SXM_SECURE")
    )
    assert "_SECURE" in alone.price_of and "_SECURE" not in several.price_of
    assert named.price_of == "2 x 8x_A100-80GB-SXM_SECURE" and named.usd_per_hour == pytest.approx(2 * 12.72)


@pytest.mark.parametrize(
    ("config", "mode", "words"),
    [
        ("bert-base.json", "train", "masked-lm"),
        ("bert-base.json", "infer", "generating text needs a decoder"),
        ("t5.json", "infer", "does not emit inference"),
        ("t5.json", "train", "does not emit training"),
    ],
)
def test_what_is_no_decoder_is_refused_for_what_was_asked(tmp_path, config, mode, words):
    (tmp_path / "t5.json").write_text(json.dumps({"model_type": "t5"}))
    path = MODELS / config if (MODELS / config).exists() else tmp_path / config
    with pytest.raises(UsageError) as refused:
        read_work(Request(model=str(path), mode=mode))
    assert words in str(refused.value)


def test_the_data_of_the_examples_is_what_its_script_writes():
    spec = importlib.util.spec_from_file_location("write", CHATS.parent / "write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert CHATS.read_text(encoding="utf-8") == module.dump_rows()
