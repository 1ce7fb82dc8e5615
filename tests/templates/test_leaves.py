"""The leaves of the templates, imported as they stand: what a generated project is made of beside train.py, data.py and infer.py."""

from __future__ import annotations

import ast
import gzip
import json
import math
import os
import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace as Values

import pytest
from jsonschema import Draft202012Validator
from leaves import FRAGMENTS, make_control, make_state

from generator.run.schema import FOLDER

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


def validate(path: Path) -> dict:
    content = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator(json.loads((FOLDER / path.name).read_text(encoding="utf-8"))).validate(content)
    return content


RAW = re.compile(r"\{% raw %\}.*?\{% endraw \+?%\}", re.DOTALL)
"""A chat template is Jinja of its own, which is copied as it is."""


def test_leaves_hold_no_template_language():
    """They are included by a template: what Jinja would take for its own must not stand in them."""
    for path in FRAGMENTS.rglob("*.py"):
        text = RAW.sub("", path.read_text(encoding="utf-8"))
        assert not any(mark in text for mark in ("{{", "{%", "{#")), path


# ---- stopping


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            OSError(28, "No space left on device", "/runs/run.json"),
            "OSError: .*No space left on device: '/runs/run.json'",
        ),
        (OSError("owner/model is gated.\n\nAsk for access."), "OSError: owner/model is gated. Ask for access."),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "Killed..*fewer of them"),
        (KeyboardInterrupt(), "130"),
    ],
    ids=["full disk", "hub", "worker", "Ctrl-C"],
)
def test_what_lies_outside_is_a_line(load, error, code):
    def main():
        raise error

    with pytest.raises(SystemExit, match=f"(?s){code}"):
        load("stopping").run_main(main)


def test_a_fault_of_the_program_keeps_its_traceback(load):
    with pytest.raises(ZeroDivisionError):
        load("stopping").run_main(lambda: 1 / 0)


@pytest.fixture
def stopping(load):
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    yield load("stopping")
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_after_the_step(stopping, number, code, capsys):
    callback, control, state = stopping.SaveOnSignal(), make_control(), make_state(global_step=5)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert not control.should_training_stop
    os.kill(os.getpid(), number)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert control.should_save and control.should_training_stop
    if number == signal.SIGINT:
        assert signal.getsignal(number) == signal.SIG_DFL  # a second one ends it at once
    else:
        os.kill(os.getpid(), number)  # that the save is lost to neither of two that a cluster sends
    callback.on_save(None, state, control)
    with pytest.raises(SystemExit) as ended:
        callback.on_train_end(None, state, control)
    assert ended.value.code == code
    assert capsys.readouterr().out == f"stopped by {signal.Signals(number).name} after step 5: run again to go on\n"


def test_nohup_holds(stopping):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    callback, control, state = stopping.SaveOnSignal(), make_control(), make_state(global_step=5)
    callback.on_train_begin(None, state, control)
    os.kill(os.getpid(), signal.SIGHUP)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert not control.should_save and not control.should_training_stop


def test_a_signal_on_a_full_disk_promises_nothing(stopping, capsys):
    callback, control, state = stopping.SaveOnSignal(), make_control(), make_state(global_step=2)
    callback.on_train_begin(None, state, control)
    state.global_step = 5
    os.kill(os.getpid(), signal.SIGTERM)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    with pytest.raises(SystemExit):
        callback.on_train_end(None, state, control)
    assert capsys.readouterr().out == "stopped by SIGTERM after step 5: nothing was saved since step 2\n"


def test_a_signal_at_the_last_step_leaves_the_rest_of_the_run(stopping):
    callback, control, state = stopping.SaveOnSignal(), make_control(), make_state(global_step=8)
    args = Values(load_best_model_at_end=True, save_strategy="steps")
    callback.on_train_begin(args, state, control)
    os.kill(os.getpid(), signal.SIGTERM)
    callback.on_step_end(args, state, control)
    assert control.should_save and callback.on_train_end(None, state, control) is None
    assert args.load_best_model_at_end


def test_who_sent_a_signal_does_not_wait_for_the_best_model(stopping):
    callback, control, args = (
        stopping.SaveOnSignal(),
        make_control(),
        Values(load_best_model_at_end=True, save_strategy="steps"),
    )
    callback.on_train_begin(args, make_state(global_step=0), control)
    os.kill(os.getpid(), signal.SIGTERM)
    callback.on_step_end(args, make_state(global_step=5), control)
    assert control.should_training_stop and not args.load_best_model_at_end


def test_a_signal_after_the_last_decision_leaves_the_end_alone(stopping):
    callback, control, state = stopping.SaveOnSignal(), make_control(), make_state(global_step=5)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    os.kill(os.getpid(), signal.SIGTERM)
    assert callback.on_train_end(None, state, control) is None


def test_a_run_that_was_not_stopped_ends_well(stopping):
    assert stopping.SaveOnSignal().on_train_end(None, make_state(), make_control()) is None


@pytest.mark.parametrize(
    ("logs", "fp16", "stops"),
    [
        ({"loss": math.nan}, False, "non-finite loss"),
        ({"loss": math.inf}, True, "non-finite loss"),
        ({"eval_loss": math.nan}, True, "non-finite eval_loss"),
        ({"loss": 1.0, "grad_norm": math.inf}, False, "non-finite grad_norm"),
        ({"loss": 1.0, "grad_norm": math.inf}, True, None),
        ({"epoch": 1.0}, False, None),
    ],
)
def test_a_bad_loss_ends_the_run_and_the_checkpoint_that_was_begun(stopping, load, tmp_path, logs, fp16, stops):
    def log() -> None:
        args = Values(fp16=fp16, output_dir=str(tmp_path))
        stopping.StopOnBadLoss().on_log(args, make_state(global_step=3), None, logs=logs)

    load("seals").begin_checkpoint(tmp_path / "checkpoint-3")
    if stops is None:
        log()
    else:
        with pytest.raises(SystemExit, match=f"step 3: {stops}"):
            log()
    assert (tmp_path / "checkpoint-3").exists() == (stops is None)


# ---- model_card


@pytest.mark.parametrize("more", [{}, {"revision": None}], ids=["a folder", "a hub id that became a folder"])
def test_a_license_is_read_beside_the_weights(load, tmp_path, more):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A model\n", encoding="utf-8")
    load("evaluation")
    assert load("model_card").find_license({"model": str(tmp_path)} | more) == "mit"


# ---- run_report


def test_a_report_keeps_the_first_step_and_saves_apart(load, tmp_path, monkeypatch, capsys):
    load("token_count")
    leaf, clock = load("run_report"), Values(now=100.0)
    monkeypatch.setattr(leaf.time, "perf_counter", lambda: clock.now)
    args, state = Values(output_dir=str(tmp_path), world_size=2, device="cpu"), make_state()
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    rows = [{"input_ids": [1] * 16}] * 16  # 4 steps of 4 sequences
    report = leaf.RunReport(measure=lambda: {"peak_memory_gib": 0.5})
    loader = DataLoader(rows, batch_size=4, collate_fn=default_data_collator)
    report.on_train_begin(args, state, None, train_dataloader=loader)
    report.on_evaluate(args, state, None, metrics={"eval_runtime": 30.0})
    clock.now += 40.0  # an evaluation and answers before the first step
    report.on_epoch_begin(args, state, None)
    assert len(list(loader)) == 4
    for step, seconds, loss in ((1, 9.0, 3.0), (2, 1.0, 2.5), (4, 4.0, 2.0)):  # the last log is of two steps
        clock.now += seconds
        while state.global_step < step:
            state.global_step += 1
            report.on_step_end(args, state, None)
        state.log_history.append({"step": step, "loss": loss})
        report.on_log(args, state, None)
        clock.now += 50.0
        report.on_save(args, state, None)
    state.log_history.append({"step": 4, "train_runtime": 1.0})
    report.write(args, state, report.build(args, state))

    measured = validate(tmp_path / "run.json")
    assert measured["first_step_seconds"] == 9.0 and measured["steps"] == [1.0, 2.0, 2.0]
    assert measured["step_seconds"] == 2.0 and measured["tokens_per_second"] == 32.0
    assert report.tokens_seen == 256 and report.speed == 32.0
    assert measured["padding_share"] == 0 and not list(tmp_path.glob("*.tmp"))
    assert measured["losses"] == [3.0, 2.5, 2.0] and measured["finished_step"] == 4 and measured["processes"] == 2
    assert "<svg" in (tmp_path / "loss.svg").read_text(encoding="utf-8")
    assert "32 tokens/s, 0.50 GiB at peak" in capsys.readouterr().out


def test_a_log_is_one_line_that_fits_a_terminal(load, capsys):
    load("token_count")
    load("evaluation")
    report = load("run_report").RunReport()
    progress = load("progress").PrintProgress(report)
    state = Values(global_step=0, max_steps=12000, is_world_process_zero=True)
    progress.on_log(None, state, None, logs={"eval_loss": 2.5, "eval_perplexity": 12.18, "eval_runtime": 1.0})
    state.global_step, report.seconds, report.speed = 2, [60.0, 0.5], 2_000_000  # compiled in the first step
    progress.on_log(None, state, None, logs={"loss": 2.34567, "learning_rate": 1.25e-5, "grad_norm": 1.234})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step     0/12000  evaluation: loss 2.5  perplexity 12.18"
    assert lines[1].endswith("loss 2.346  lr 1.25e-05  grad 1.23  2,000,000 tokens/s  1:39:59 left")
    assert all(len(line) <= 100 for line in lines)


def test_a_run_that_was_ended_before_its_report_is_reported_from_its_checkpoint(load, tmp_path, capsys):
    leaf, args = load("run_report"), Values(output_dir=str(tmp_path), world_size=2, device="cpu")
    state = make_state(global_step=8, log_history=[{"step": 8, "loss": 2.5}])
    (tmp_path / "checkpoint-8").mkdir()
    figures = {"step_seconds": 2.0, "tokens_per_second": 8.0, "peak_memory_gib": 0.5, "confusion": [1]}
    (tmp_path / "checkpoint-8" / "figures.json").write_text(json.dumps(figures | {"kept_step": 4}))
    report = leaf.RunReport(describe=lambda: {"kept_step": 8})
    result = report.build(args, state)
    assert result.items() >= (figures | {"kept_step": 8, "losses": [2.5], "finished_step": 8, "processes": 2}).items()
    assert result["ended"] == "reached the last step, 8"
    report.write(args, state, result)
    assert json.loads((tmp_path / "run.json").read_text()) == result
    out = capsys.readouterr().out
    assert out.startswith(
        f"nothing left to train: {tmp_path} reached the last step, 8. Its model and its report are wri"
    )
    assert "ended by early stopping at step 4" in report.build(args, make_state(global_step=4))["ended"]


class Words:
    """A tokenizer for which a word is a token, and a model that says the same to everything."""

    pad_token_id = eos_token_id = 0
    chat_template = None

    def __call__(self, text, **_):
        import torch
        from transformers import BatchEncoding

        return BatchEncoding({n: torch.ones(1, len(text.split()), dtype=torch.long) for n in KEYS})

    def decode(self, tokens, **_) -> str:
        return f"{len(tokens)} words"


KEYS = ("input_ids", "attention_mask")


def make_model():
    import torch

    def generate(input_ids, **_):
        return torch.cat([input_ids, input_ids], dim=1)

    config = Values(get_text_config=lambda: Values(max_position_embeddings=64))
    ends = Values(eos_token_id=0)
    parts = {"config": config, "generation_config": ends}
    return Values(training=True, device="cpu", **parts, eval=list, train=bool, generate=generate)


def test_answers_of_a_resumed_run_are_those_of_the_same_prompts(load, tmp_path):
    """The rows that are held out may be others then; a run that was ended at its last step has not answered yet."""
    load("token_count")
    load("run_report")
    load("terminal")
    load("fields")
    leaf = load("answers")
    rows = [{"prompt": "how much is it", "completion": "ten"}, {"prompt": "who", "completion": "me"}]
    first = leaf.SampleAnswers(rows[:1], Words(), 64, tmp_path)
    first.on_train_begin(None, make_state(), None, model=make_model())
    assert first.describe()["answers"][0]["before"] == "4 words" and not list(tmp_path.glob("*.tmp"))
    again = leaf.SampleAnswers(rows[::-1], Words(), 64, tmp_path)
    again.on_train_begin(None, make_state(global_step=8), None, model=make_model())
    again.on_train_end(None, make_state(global_step=8), None, model=make_model())
    assert [(row["before"], row["after"]) for row in again.rows] == [(None, "1 words"), ("4 words", "4 words")]


def test_answers_show_what_was_asked_and_not_what_all_prompts_begin_with(load, tmp_path, capsys):
    """A chat template's system turn filled the line, the same for each."""
    load("token_count")
    load("run_report")
    load("terminal")
    load("fields")
    leaf, tokenizer = load("answers"), Words()
    tokenizer.apply_chat_template = lambda turns, **_: f"{'You are helpful. ' * 5}{turns[-1]['content']} <assistant>"
    turns = [("user", "who wrote it?"), ("assistant", "she did")]
    turns = [{"role": role, "content": content, "further": None} for role, content in turns]
    rows = [
        {"messages": turns, "tools": None, "chat_template_kwargs": None},
        {"prompt": "word " * 40 + "and the last?", "completion": "x"},
    ]
    answers = leaf.SampleAnswers(rows, tokenizer, 640, tmp_path)
    answers.on_train_begin(None, make_state(), None, model=make_model())
    answers.on_train_end(None, make_state(global_step=8), None, model=make_model())
    prompts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  prompt")]
    assert prompts[0] == "  prompt  who wrote it?"
    assert prompts[1].startswith("  prompt  …") and prompts[1].endswith("and the last?") and len(prompts[1]) == 80
    assert all(row["prompt"].endswith(end) for row, end in zip(answers.rows, ["<assistant>", "last?"], strict=True))


@pytest.mark.parametrize(
    ("warmup", "steps", "words"),
    [
        (1, 8, "step 1 of 8 is taken at learning rate 0"),
        (1, 1, "the run ends before that is over"),
        (2, 8, ""),
        (0, 1, ""),
    ],
)
def test_a_warmup_of_one_step_is_said(load, capsys, warmup, steps, words):
    load("token_count")
    load("evaluation")
    report = load("run_report").RunReport()
    args = Values(get_warmup_steps=lambda steps: warmup)
    scheduler = Values(get_last_lr=lambda: [0.0 if warmup else 1e-3])
    state = Values(global_step=0, max_steps=steps, is_world_process_zero=True)
    load("progress").PrintProgress(report).on_train_begin(args, state, None, lr_scheduler=scheduler)
    printed = capsys.readouterr().out
    assert words in printed and bool(words) == bool(printed)


def test_a_model_card_has_task_title_and_what_ended_the_run(load, tmp_path):
    load("evaluation")
    leaf = load("model_card")
    run = {"finished_step": 8, "processes": 1, "changes": ["from step 4 on: a"]}
    names = {"learning_rate": 1e-3, "warmup_steps": 0, "weight_decay": 0.0, "seed": 1, "train_batch_size": 2}
    names |= {"gradient_accumulation_steps": 2, "world_size": 1, "lr_scheduler_type": Values(value="linear")}
    config = {"model": "tiny/config.json", "data": "d.jsonl", "seq_len": 16, "loss_on": "assistant"}
    for steps, epochs in ((8, False), (-1, True)):
        args = Values(**names, output_dir=str(tmp_path), max_steps=steps, num_train_epochs=1.0)
        leaf.write_model_card(args, config, run, task="sft", from_scratch=True)
        card = (tmp_path / "README.md").read_text()
        assert "# tiny, from random weights\n" in card and "| task | sft |" in card
        assert "| learned from | the answers |" in card and "| changed on the way | from step 4 on: a |" in card
        assert ("| epochs | 1 |" in card) == epochs and "epochs | 1.0" not in card
    assert (
        leaf.name_model(Path("/a/llama.json")) == "llama" and leaf.name_model(Path("/a/SmolLM2-1.7B")) == "SmolLM2-1.7B"
    )


def test_a_run_without_a_logged_loss_is_drawn_empty(load, tmp_path):
    load("token_count")
    load("run_report").draw_loss(tmp_path / "loss.svg", [{"step": 8, "train_runtime": 1.0}])
    assert "<svg" in (tmp_path / "loss.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt", "parquet", "arrow"])
def test_a_damaged_file_is_what_its_reader_says_it_raises(load, tmp_path, kind):
    """A compressed file that ends early, a table that is none, a file that is gone."""
    load("open_data")
    leaf = load(f"rows/{kind}", "rows")
    path = tmp_path / (f"d.{kind}" if kind in ("parquet", "arrow") else f"d.{kind}.gz")
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 999)[:-9])
    for _ in range(2):
        with pytest.raises(leaf.UNREADABLE):
            list(leaf.read_rows(path))
        path.unlink(missing_ok=True)
    if kind == "jsonl":
        with pytest.raises(ValueError, match="recursion"):
            leaf.parse_row(b"[" * 100_000)


def test_a_row_that_nests_too_deep_is_none(load):
    """Python reads 990 levels and writes fewer: what was taken could not be written again."""
    load("open_data")
    for leaf, read in ((load("rows/jsonl", "rows"), bytes), (load("rows/json", "rows"), json.loads)):
        for levels, fits in ((99, True), (100, False), (900, False)):
            line = b'{"few": [1, [2, {}]], "x": ' + b'[{"a":' * (levels // 2) + b"[" * (levels % 2)
            line += b"1" + b"]" * (levels % 2) + b"}]" * (levels // 2) + b"}"
            if fits:
                assert leaf.parse_row(read(line)) == json.loads(line)
            else:
                with pytest.raises(ValueError, match="nests deeper than 100 levels"):
                    leaf.parse_row(read(line))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("license: mit", "mit"),
        ("license: mit\nreleased: 2024-13-45", None),
        ("license: " + "[" * 5000, None),
        ("a: &a [x, x]\nb: &b [*a, *a]\nlicense: *b", None),
        ("- license: mit", None),
        ("license: 'x\n\n  --- a: b'", "x\n--- a: b"),
    ],
    ids=["plain", "no date", "deep", "list of lists", "no mapping", "line break"],
)
def test_a_base_model_s_own_card_ends_no_run(load, tmp_path, head, name):
    """It is read after the last step: a ValueError of its YAML there made a finished run exit with 1."""
    load("evaluation")
    leaf = load("model_card")
    (tmp_path / "README.md").write_text(f"---\n{head}\n---\n# m\n")
    assert leaf.find_license({"model": str(tmp_path)}) == name


def test_a_name_has_no_power_over_the_card(load):
    load("evaluation")
    assert load("model_card").make_table("T", {"data": "a|b\n| c | <script>"}).splitlines()[4:] == [
        "| data | a&#124;b &#124; c &#124; &lt;script&gt; |"
    ]


def test_the_words_of_a_row_have_no_power_over_a_terminal(load, tmp_path, capsys):
    """OSC 52 writes to the clipboard; what the model answers is of the same rows."""
    tokenizer = Values(decode=lambda tokens, **_: "".join(map(chr, tokens)))
    example = {"input_ids": list(map(ord, "a\x1b]52;c;eA==\x07\x9b1m\té\nb")), "labels": [-100] * 20}
    load("terminal")
    load("first_example").show_example(example | {"labels": [-100] * len(example["input_ids"])}, tokenizer, tmp_path)
    out = capsys.readouterr().out
    assert "a\\x1b]52;c;eA==\\x07\\x9b1m\té\nb" in out and not {"\x1b", "\x07", "\x9b"} & set(out)
    load("token_count")
    load("run_report")
    load("fields")
    assert load("answers").shorten("a\x1b]0;x\x07 b") == r"a\x1b]0;x\x07 b"


# ---- infer_report, machine


def test_the_first_call_is_kept_apart(load, tmp_path, capsys):
    load("machine/cpu", "machine")
    leaf = load("infer_report")
    path = tmp_path / "new" / "infer.json"
    asked = {"prompt": "a \ud800", "answer": "b\nc", "prompt_tokens": 3, "new_tokens": [8, 8, 8]}
    leaf.write_report(path, **asked, first_call_seconds=9.0, seconds=[2.0, 4.0, 1.0])
    report = validate(path)
    assert (report["seconds"], report["first_call_seconds"], report["calls"]) == (2.0, 9.0, 3)
    assert report["tokens_per_second"] == 4.0 and report["answer"] == "b\nc" and report["peak_memory_gib"] > 0
    assert "8 tokens in 2 s: 4.0 tokens/s" in capsys.readouterr().out


def test_answers_of_different_lengths_have_one_speed(load, tmp_path):
    load("machine/cpu", "machine")
    asked = {"prompt": "a", "answer": "b", "prompt_tokens": 3, "new_tokens": [10, 40, 9], "first_call_seconds": 9.0}
    load("infer_report").write_report(tmp_path / "infer.json", **asked, seconds=[1.0, 4.0, 1.0])
    report = validate(tmp_path / "infer.json")
    assert report["tokens_per_second"] == 10.0 and report["new_tokens"] == 9


def test_json_is_the_report_and_nothing_else(load, tmp_path, capsys):
    load("machine/cpu", "machine")
    asked = {"prompt": "a", "answer": "b", "prompt_tokens": 3, "new_tokens": [8], "first_call_seconds": 9.0}
    load("infer_report").write_report(tmp_path / "infer.json", **asked, seconds=[2.0], as_json=True)
    assert json.loads(capsys.readouterr().out) == validate(tmp_path / "infer.json")


def test_a_classifier_reads(load, tmp_path):
    load("machine/portable", "machine")
    asked = {
        "prompt": "a",
        "answer": "good",
        "prompt_tokens": 6,
        "new_tokens": [0],
        "labels": {"good": 0.9, "bad": 0.1},
    }
    load("infer_report").write_report(tmp_path / "infer.json", **asked, first_call_seconds=5.0, seconds=[2.0])
    report = validate(tmp_path / "infer.json")
    assert (report["seconds"], report["first_call_seconds"], report["tokens_per_second"]) == (2.0, 5.0, 3.0)
    assert report["labels"] == {"good": 0.9, "bad": 0.1}


def test_a_report_that_cannot_be_written_is_one_line(load, tmp_path, capsys):
    load("machine/portable", "machine")
    (tmp_path / "file").write_text("")
    asked = {"prompt": "a", "answer": "b", "prompt_tokens": 3, "new_tokens": [8], "first_call_seconds": 9.0}
    load("infer_report").write_report(tmp_path / "file" / "infer.json", **asked, seconds=[2.0])
    output = capsys.readouterr()
    assert output.err.startswith("no report written: ") and output.err.count("\n") == 1
    assert str(tmp_path / "file") in output.err and "8 tokens in 2 s" in output.out


def test_the_peak_of_a_process_is_what_the_system_counts(load):
    import psutil

    peak = load("machine/cpu").peak_memory()["peak_memory_gib"]
    assert peak == load("machine/portable").peak_memory()["peak_memory_gib"]
    assert peak >= 0.9 * psutil.Process().memory_info().rss / 2**30


PLANNED = {"gpus": 2, "name": "NVIDIA A100", "compute_capability": "8.0", "memory_gib": 40.0, "needs_gib": 30.0}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"count": 0}, "PyTorch sees none"),
        ({"count": 1}, "needs 2 GPUs on this machine, and PyTorch sees 1"),
        ({"capability": (7, 5)}, "compute capability 8.0, and NVIDIA A100 has 7.5"),
        ({"memory": 29.0}, "made for 30.0 GiB, and NVIDIA A100 has 29.0"),
        ({"memory": 35.0}, None),
        ({"capability": (9, 0)}, None),
    ],
)
def test_another_gpu_stops_the_run_or_is_said(load, monkeypatch, capsys, seen, words):
    leaf = load("machine/cuda")
    major, minor = seen.get("capability", (8, 0))
    memory = int(seen.get("memory", 40.0) * 2**30)
    gpu = Values(major=major, minor=minor, name="NVIDIA A100", total_memory=memory)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(leaf.torch.cuda, "device_count", lambda: seen.get("count", 2))
    monkeypatch.setattr(leaf.torch.cuda, "get_device_properties", {1: gpu}.__getitem__)
    if words:
        with pytest.raises(SystemExit, match=words):
            leaf.check_machine(PLANNED)
    else:
        leaf.check_machine(PLANNED)
        assert "running on NVIDIA A100: speed and memory will differ" in capsys.readouterr().out


def test_too_little_memory_stops_the_run(load, capsys):
    leaf = load("machine/cpu")
    leaf.check_machine({"needs_gib": 0.1, "cpus": 1})
    assert capsys.readouterr().out == ""
    leaf.check_machine({"needs_gib": 0.1, "cpus": 100_000})
    assert "slower than PLAN.md says" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"made for 100000 GiB of memory"):
        leaf.check_machine({"needs_gib": 100_000, "cpus": 1})


# ---- rows


def test_rows_of_text(load, tmp_path):
    load("open_data")
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\nthree")
    assert list(load("rows/txt").read_rows(tmp_path / "a.txt")) == [(1, b"one\n"), (2, b"\xff\n"), (3, b"three")]


def test_rows_of_json_lines(load, tmp_path):
    load("open_data")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\n  \n{"a": 2}')
    assert list(load("rows/jsonl").read_rows(tmp_path / "a.jsonl")) == [(1, b'{"a": 1}\n'), (4, b'{"a": 2}')]


def test_rows_of_csv(load, tmp_path):
    load("open_data")
    (tmp_path / "a.csv").write_bytes('\ufeffa,b\n1,"x\ny"\n2\n'.encode())
    rows = list(load("rows/csv").read_rows(tmp_path / "a.csv"))
    assert rows == [(3, {"a": "1", "b": "x\ny"}), (4, {"a": "2", "b": None})]


@pytest.mark.parametrize("rest", [b'"x\n3,y\n4,z\n', b'"x"y\n3,y\n'])
def test_a_quote_that_nobody_closes_ends_a_csv(load, tmp_path, rest):
    """All rows behind it would be one value, of the last column, and nothing would be wrong with its row."""
    load("open_data")
    leaf = load("rows/csv")
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,x\n2," + rest)
    with pytest.raises(leaf.UNREADABLE):
        list(leaf.read_rows(tmp_path / "a.csv"))


def test_a_key_that_stands_in_an_object_twice_loses_nothing_in_silence(load):
    load("open_data")
    with pytest.raises(ValueError, match="an object has 'b' twice"):
        load("rows/jsonl").parse_row(b'{"a": {"b": 1, "c": 2, "b": 3}}')


def test_rows_of_parquet(load, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": list(range(2500))}), tmp_path / "a.parquet")
    rows = list(load("rows/parquet").read_rows(tmp_path / "a.parquet"))
    assert rows[0] == (1, {"a": 0}) and rows[-1] == (2500, {"a": 2499}) and len(rows) == 2500


# ---- tokenizer


def test_a_tokenizer_is_learnt_once_for_its_texts(load, tmp_path):
    load("run_folder")
    leaf, folder, texts = load("tokenizer"), tmp_path / "tokenizer", ["the cat sat on the mat", "it did é\n"] * 50
    first = leaf.train_tokenizer(texts, folder, 270)
    text = "the cat é\n"
    assert first.decode(first(text)["input_ids"]) == text and len(first) <= 270
    learnt = (folder / "tokenizer.json").stat().st_mtime_ns
    assert leaf.train_tokenizer(texts[::-1], folder, 270).get_vocab() == first.get_vocab()
    assert (folder / "tokenizer.json").stat().st_mtime_ns == learnt
    assert leaf.train_tokenizer(["dogs bark"] * 50, folder, 300).get_vocab() != first.get_vocab()
    assert not (tmp_path / "tokenizer.tmp").exists()


def test_a_checkpoint_keeps_its_tokenizer(load, tmp_path):
    load("run_folder")
    leaf, folder = load("tokenizer"), tmp_path / "tokenizer"
    first = leaf.train_tokenizer(["the cat sat on the mat"] * 50, folder, 270)
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(SystemExit, match="learnt from other texts"):
        leaf.train_tokenizer(["the cat sat on the mat"] * 51, folder, 270)
    (folder / leaf.LEARNT_FROM).unlink()  # as an earlier version left it
    assert leaf.train_tokenizer(["other words"], folder, 270).get_vocab() == first.get_vocab()


# ---- parallel, in a group of one


@pytest.fixture
def parallel(load, tmp_path):
    import torch.distributed as dist

    load("checkpoints")
    load("stopping")
    load("wrapping/ddp", "wrapping")
    load("machine/cpu", "machine")
    leaf = load("parallel")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield leaf
    leaf.gloo_group.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def test_what_processes_agree_on(parallel):
    assert parallel.all_reduce_max(-3.5) == -3.5
    assert parallel.broadcast_from_rank0(lambda a, b: {a: b}, "x", None) == {"x": None}


def test_where_the_first_process_ends_all_do_and_it_alone_says_why(parallel, monkeypatch):
    def refuse():
        sys.exit("another run's")

    with pytest.raises(SystemExit, match="another run's"):
        parallel.broadcast_from_rank0(refuse)
    monkeypatch.setattr(parallel.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(parallel.dist, "broadcast_object_list", lambda objects, group: None)  # it stays as it was
    with pytest.raises(SystemExit, match=r"^1$"):
        parallel.broadcast_from_rank0(refuse)


def test_a_folder_that_not_all_processes_see_is_refused_before_anything_is_trained(parallel, monkeypatch, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "_shared-0").touch()  # of a start that was killed
    parallel.claim_shared_folder(folder, "owner/model")
    assert {path.name for path in folder.iterdir()} == {"_train.lock"}
    monkeypatch.setattr(parallel, "all_reduce_max", lambda unseen: 1.0)  # another process sees no mark
    with pytest.raises(SystemExit, match="on a disk that all nodes see"):
        parallel.claim_shared_folder(folder, "owner/model")
    assert {path.name for path in folder.iterdir()} == {"_train.lock"}


def test_a_checkpoint_is_sealed_once_the_first_process_sees_every_file(parallel, monkeypatch, tmp_path):
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "rng_state_0.pth").write_text("a")
    (checkpoint / "parts").mkdir()
    for rank in (0, 1):
        (checkpoint / f"parts/__{rank}_0.distcp").write_text("a")
    late = checkpoint / "rng_state_1.pth"

    def gather(written, lists, group):
        """Of both processes: the other has hashed its own part."""
        lists[0] = written | {str(late)} if isinstance(written, set) else written | {"parts/__1_0.distcp": "of 1"}

    def sleep(seconds):
        late.write_text("b")  # the first node lists it at last

    monkeypatch.setattr(parallel.dist, "gather_object", gather)
    monkeypatch.setattr(parallel.time, "sleep", sleep)
    seal, args = parallel.DistributedSealCheckpoints({}), Values(output_dir=str(tmp_path), local_process_index=0)
    seal.on_save(args, make_state(global_step=1), make_control())
    files = json.loads((checkpoint / "complete.json").read_text())["files"]
    assert set(files) == {"parts/__0_0.distcp", "parts/__1_0.distcp", "rng_state_0.pth", "rng_state_1.pth"}
    assert files["parts/__1_0.distcp"] == {"bytes": 1, "sha256": "of 1"}  # what one process wrote no other reads
    assert files["parts/__0_0.distcp"]["sha256"] == files["rng_state_0.pth"]["sha256"]

    (checkpoint / "complete.json").unlink(), late.unlink()
    monkeypatch.setattr(parallel, "SHOWN_SECONDS", -1.0)
    with pytest.raises(SystemExit, match="is not sealed: what other nodes wrote"):
        seal.on_save(args, make_state(global_step=1), make_control())
    assert not (checkpoint / "complete.json").exists()


def test_the_others_wait_over_the_cpu_while_the_first_process_seals(parallel, monkeypatch, tmp_path):
    """NCCL would end them after 10 minutes: DeepSpeed's groups, and those of a mesh, do not have ddp_timeout."""
    events = []
    monkeypatch.setattr(parallel.dist, "barrier", lambda group: events.append("wait") or group.size())
    monkeypatch.setattr("checkpoints.write_seal", lambda folder, run, known: events.append("seal"))
    monkeypatch.setattr("checkpoints.rotate_checkpoints", lambda *arguments: events.append("remove"))
    (tmp_path / "checkpoint-1").mkdir()
    args = Values(output_dir=str(tmp_path), local_process_index=0)
    parallel.DistributedSealCheckpoints({}).on_save(args, make_state(global_step=1), make_control())
    assert events == ["wait", "seal", "remove", "wait"]


def test_a_first_process_may_write_for_longer_than_half_an_hour(parallel):
    import torch

    group = parallel.gloo_group()
    assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() == 7200


def test_a_signal_is_left_to_come_again(parallel, capsys):
    callback, control, state = parallel.DistributedSaveOnSignal("its weights are saved"), make_control(), make_state()
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    callback.on_train_begin(None, state, control)
    for _ in range(2):  # one process would end at the second
        os.kill(os.getpid(), signal.SIGTERM)
    for number, handler in kept.items():
        signal.signal(number, handler)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert control.should_save and control.should_training_stop
    state.is_world_process_zero = False
    with pytest.raises(SystemExit):
        callback.on_train_end(None, state, control)
    assert capsys.readouterr().out == ""


def test_a_signal_during_the_vote_waits_for_the_next(parallel, monkeypatch):
    callback, control, state = parallel.DistributedSaveOnSignal(), make_control(), make_state()
    votes = []

    def vote(number: float) -> float:
        votes.append(number)
        callback.request_stop(signal.SIGTERM, None)  # it comes once this process has given its number
        return number

    monkeypatch.setattr(parallel, "all_reduce_max", vote)
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert not control.should_training_stop and callback.on_train_end(None, state, control) is None
    callback.on_step_end(Values(save_strategy="steps"), state, control)
    assert votes == [0, signal.SIGTERM] and control.should_save and control.should_training_stop


def test_what_a_checkpoint_of_several_processes_needs(parallel, tmp_path):
    import shutil

    seal = parallel.DistributedSealCheckpoints({"trained parameters": 1000})
    assert seal.needed_bytes(None) == 16_000 + (16 << 20)
    assert seal.free_bytes(str(tmp_path)) == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.01)
    control = make_control()
    control.should_save = (
        True  # the Trainer looks for the folder before a sharded model has made it, and the best model hangs on that
    )
    seal.on_step_end(Values(output_dir=str(tmp_path)), make_state(global_step=1), control, model=None)
    assert control.should_save and (tmp_path / "checkpoint-1").is_dir()
    args = Values(output_dir=str(tmp_path), local_process_index=0)
    seal.on_save(args, make_state(global_step=1), control)
    assert (tmp_path / "checkpoint-1" / "complete.json").exists()


@pytest.mark.parametrize(("started", "count", "words"), [("1", 2, "2 processes"), (None, 1, "1 process of a launcher")])
def test_a_wrong_number_of_processes_is_refused(load, monkeypatch, started, count, words):
    load("checkpoints"), load("stopping"), load("wrapping/ddp", "wrapping"), load("machine/cpu", "machine")
    planned = {"launcher": "torchrun --standalone", "expected": {"world_size": count}}
    monkeypatch.setenv("WORLD_SIZE", str(count))
    load("parallel").check_launch(planned)
    monkeypatch.delenv("WORLD_SIZE") if started is None else monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(SystemExit, match=words) as refused:
        load("parallel").check_launch(planned)
    assert "torchrun --standalone train.py" in str(refused.value)


def test_a_model_that_is_not_wrapped_as_planned_stops_the_run(parallel, capsys):
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    args = Values(process_index=0)
    expected = {"wrapper": "DistributedDataParallel", "world_size": 1, "backend": "gloo", "device": "cpu"}
    for model in (DistributedDataParallel(nn.Linear(2, 2)), nn.Sequential(DistributedDataParallel(nn.Linear(2, 2)))):
        parallel.CheckParallel(Values(model_wrapped=model), {"expected": expected}).on_train_begin(
            args, make_state(), None
        )
    assert capsys.readouterr().out.count("as planned: wrapper DistributedDataParallel") == 2
    with pytest.raises(SystemExit, match=r"wrapper: Linear, not DistributedDataParallel"):
        parallel.CheckParallel(Values(model_wrapped=nn.Linear(2, 2)), {"expected": expected}).on_train_begin(
            args, make_state(), None
        )


def test_what_is_fetched_whole_of_the_hub_is_named():
    """A repository may hold its weights twice (Llama's ``original/``): without patterns all of it comes."""
    calls = [
        (path.name, [keyword.arg for keyword in node.keywords])
        for path in FRAGMENTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) == "snapshot_download"
    ]
    assert len(calls) >= 2 and all("allow_patterns" in names for _, names in calls), calls
