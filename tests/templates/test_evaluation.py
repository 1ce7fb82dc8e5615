"""The leaves that say whether a training is any good: what is held out, how it is counted, what is printed."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace as Values

import pytest
from leaves import load_leaf, make_state

from generator import pipeline
from generator.case.request import Request
from generator.case.stacks import load_stack
from generator.case.workload import TRACKERS
from generator.emit.document import build_document
from generator.run import report

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


def make_args(**more) -> Values:
    start = {"seed": 1, "data_seed": None, "train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 1}
    return Values(**start | {"process_index": 0, "eval_strategy": "steps"} | more)


@contextmanager
def keep_handlers():
    """Those of the tests, past a run that sets its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def make_config(source, most=None) -> dict:
    return {"eval_data": source, "eval_rows": most}


def make_rows(count: int, label=None, different: int = 1_000_000):
    from datasets import Dataset

    rows = {"text": [f"row {number % different}" for number in range(count)]}
    return Dataset.from_dict(rows | ({"label": [label(number) for number in range(count)]} if label else {}))


@pytest.mark.parametrize(
    ("rows", "share", "most", "held"),
    [(1000, 0.02, None, 20), (1000, 0.02, 5, 5), (100_000, 0.02, 500, 500), (20, 0.02, 500, 1), (12, 0.9, None, 4)],
)
def test_a_share_is_held_out_and_a_batch_is_left(rows, share, most, held):
    training, evaluation = load_leaf("evaluation").hold_out(
        make_rows(rows), make_config(share, most), make_args(), None
    )
    assert (len(training), len(evaluation)) == (rows - held, held)
    assert sorted(training["text"][:] + evaluation["text"][:]) == sorted(f"row {number}" for number in range(rows))


def test_where_no_row_is_left_nothing_is_held_out_and_that_is_printed(capsys):
    args = make_args()
    training, evaluation = load_leaf("evaluation").hold_out(make_rows(8), make_config(0.02, 500), args, None)
    assert len(training) == 8 and evaluation is None
    assert (args.eval_strategy, args.eval_on_start, args.load_best_model_at_end) == ("no", False, False)
    assert "no evaluation: 8 rows" in capsys.readouterr().out


def test_nothing_is_held_out_unasked(capsys):
    training, evaluation = load_leaf("evaluation").hold_out(make_rows(100), make_config(None), make_args(), None)
    assert len(training) == 100 and evaluation is None and capsys.readouterr().out == ""


def test_the_same_rows_by_seed():
    leaf = load_leaf("evaluation")
    parts = [
        leaf.hold_out(make_rows(100), make_config(0.1), make_args(seed=seed), None)[1]["text"] for seed in (1, 1, 2)
    ]
    assert parts[0] == parts[1] != parts[2]


def test_each_label_has_its_share_and_an_only_row_is_learnt_from():
    rows = make_rows(1001, lambda number: "only" if number == 1000 else "rare" if number % 10 == 0 else "common")
    training, evaluation = load_leaf("evaluation").hold_out(rows, make_config(0.1), make_args(), None)
    counts = [evaluation["label"][:].count(label) for label in ("common", "rare", "only")]
    assert counts == [90, 10, 0] and "only" in training["label"]


def test_of_a_stream_the_last_sequences():
    stream = [{"input_ids": [number]} for number in range(100)]
    training, evaluation = load_leaf("evaluation").hold_out(stream, make_config(0.05), make_args(), None)
    assert [row["input_ids"][0] for row in evaluation] == [95, 96, 97, 98, 99] and len(training) == 95


def test_a_file_of_its_own_is_read_and_its_labels_are_known():
    leaf, read = load_leaf("evaluation"), []

    def load_file(config):
        read.append(config["data"])
        return make_rows(30, lambda number: "b")

    config = make_config("/held.jsonl", 10) | {"data": "/all.jsonl"}
    training, evaluation = leaf.hold_out(make_rows(50, lambda number: "ab"[number % 2]), config, make_args(), load_file)
    assert read == ["/held.jsonl"] and (len(training), len(evaluation)) == (50, 10)
    with pytest.raises(SystemExit, match="the label 'b' is not in the training data"):
        leaf.hold_out(make_rows(50, lambda number: "a"), config, make_args(), load_file)


@pytest.mark.parametrize(("first", "words"), [(0, "30 of the 30 rows"), (45, "5 of the 30 rows"), (50, "")])
def test_held_out_rows_that_are_trained_on_are_counted(capsys, first, words):
    def load_file(config):
        return make_rows(100).select(range(first, first + 30))

    load_leaf("evaluation").hold_out(make_rows(50), make_config("/held.jsonl"), make_args(), load_file)
    printed = capsys.readouterr().out
    assert printed.startswith(words) if words else not printed


@pytest.mark.parametrize(("different", "said"), [(20, True), (100, False)])
def test_rows_of_a_share_that_repeat_are_counted(capsys, different, said):
    """Of 300 rows that were 20 different ones, all that were held out were trained on, and nothing was said."""
    load_leaf("evaluation").hold_out(make_rows(100, different=different), make_config(0.2), make_args(), None)
    printed = capsys.readouterr().out
    assert printed == (
        "20 of the 20 rows that are held out are trained on too: their loss is too good\n" if said else ""
    )


def test_rows_that_fill_a_batch_have_no_label():
    filled = load_leaf("evaluation").FilledRows([{"input_ids": [1, 2], "labels": [1, 2]}] * 5, 4)
    assert len(filled) == 8 and len(list(filled)) == 8
    assert [row["labels"] for row in filled] == [[1, 2]] * 5 + [[-100, -100]] * 3
    assert list(load_leaf("evaluation").FilledRows([{"labels": 1}], 2))[1] == {"labels": -100}


def make_trainer(tmp_path, batch: int, rows: list[list[int]]):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=32, initializer_range=0.5))

    def pad(batch):
        longest = max(map(len, batch))
        labels = [row + [-100] * (longest - len(row)) for row in batch]
        return {"input_ids": torch.tensor(labels).clamp(min=0), "labels": torch.tensor(labels)}

    args = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_eval_batch_size=batch, prediction_loss_only=True, report_to="none"
    )
    return Trainer(model, args, data_collator=pad, eval_dataset=rows)


def test_the_loss_is_a_mean_of_tokens_whatever_the_batches(tmp_path):
    """Against the model itself, token by token; Trainer's own mean of batches is another number."""
    import torch

    rows = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 3], [4, 4, 1], [7, 6, 5, 4, 3]]
    trainer = make_trainer(tmp_path, 2, rows)
    losses = [
        torch.nn.functional.cross_entropy(
            trainer.model(torch.tensor([row])).logits[0, :-1], torch.tensor(row[1:]), reduction="sum"
        )
        for row in rows
    ]
    expected = (sum(losses) / sum(len(row) - 1 for row in rows)).item()
    plain = trainer.evaluate()["eval_loss"]
    assert plain != pytest.approx(expected, rel=1e-3)
    for batch in (1, 2, 3):
        trainer = make_trainer(tmp_path, batch, rows)
        load_leaf("evaluation").average_over_tokens(trainer)
        metrics = trainer.evaluate()
        assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["eval_perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_batches_that_are_not_on_the_device_yet_are_counted_there():
    """A loop of its own moves inputs inside of compute_loss. The meta device refuses what a GPU does: two devices in one stack."""
    import torch

    reduced = []

    def evaluation_loop(metric_key_prefix):
        trainer.compute_loss(Values(training=False), {"labels": torch.tensor([[1, 2, -100]])})
        return Values(metrics={})

    def reduce(tensor, how):
        reduced.append(tensor.device.type)
        return torch.tensor([3.0, 1.0])

    trainer = Values(
        compute_loss=lambda *_, **__: torch.ones((), device="meta"),
        evaluation_loop=evaluation_loop,
        accelerator=Values(reduce=reduce),
        compute_metrics=None,
    )
    load_leaf("evaluation").average_over_tokens(trainer)
    assert trainer.evaluation_loop().metrics["eval_loss"] == 3.0 and reduced == ["meta"]


@pytest.mark.parametrize(
    ("strategy", "step", "epoch", "evaluated", "lacks"),
    [
        ("steps", 4, 0.4, [0, 2], True),
        ("steps", 4, 0.4, [0, 2, 4], False),
        ("steps", 5, 0.5, [0, 2, 4], False),
        ("steps", 9, 0.9, [0, 2, 4, 6, 8], True),  # the last step is evaluated too
        ("epoch", 5, 1.0, [0], True),
        ("epoch", 5, 1.0, [0, 5], False),
        ("epoch", 6, 1.2, [0, 5], False),
        ("no", 4, 0.4, [], False),
    ],
)
def test_a_checkpoint_without_its_evaluation_is_known(strategy, step, epoch, evaluated, lacks):
    log = [{"step": step, "loss": 1.0}, *({"step": each, "eval_loss": 1.0} for each in evaluated)]
    state = make_state(global_step=step, epoch=epoch, log_history=log, eval_steps=2, max_steps=9)
    args = Values(eval_strategy=strategy, eval_delay=0)
    assert load_leaf("evaluation").lacks_evaluation(args, state) == lacks


@pytest.mark.parametrize("strategy", ["steps", "best", "no"])
@pytest.mark.parametrize("stopped", [2, 4])
def test_a_signal_ends_an_evaluation_and_the_next_run_makes_it(load, tmp_path, capsys, stopped, strategy):
    """It was finished first, however long it took: whoever sent the signal had killed the run by then, and the step was lost."""
    evaluation, stopping, checkpoints = load("evaluation"), load("stopping"), load("checkpoints")

    from transformers.trainer_utils import IntervalStrategy, SaveStrategy

    def prepare(name: str):
        trainer = make_trainer(tmp_path / name, 1, [[1, 2, 3], [4, 5], [6, 7], [2, 9]])
        trainer.train_dataset = [[3, 4, 5], [1, 2], [5, 6], [7, 8]]
        given = {
            "max_steps": 4,
            "eval_steps": 2,
            "save_steps": 4,
            "per_device_train_batch_size": 1,
            "disable_tqdm": True,
        }
        given |= {
            "metric_for_best_model": "eval_loss",
            "greater_is_better": False,
            "load_best_model_at_end": strategy != "no",
        }
        for key, value in given.items():
            setattr(trainer.args, key, value)
        trainer.args.eval_strategy, trainer.args.save_strategy = IntervalStrategy.STEPS, SaveStrategy(strategy)
        evaluation.prepare_evaluation(trainer, None)
        trainer.add_callback(stopping.SaveOnSignal())
        return trainer

    def list_evaluations(trainer) -> list:
        return [(entry["step"], entry["eval_loss"]) for entry in trainer.state.log_history if "eval_loss" in entry]

    uninterrupted, trainer, batches = prepare("whole"), prepare("p"), []
    with keep_handlers():
        uninterrupted.train()
    predict = trainer.prediction_step

    def predict_and_stop(*arguments, **keywords):
        if trainer.state.global_step == stopped:
            batches.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return predict(*arguments, **keywords)

    trainer.prediction_step = predict_and_stop
    with keep_handlers(), pytest.raises(SystemExit, match="143"):
        trainer.train()
    checkpoint = tmp_path / "p" / f"checkpoint-{stopped}"
    assert len(batches) == 1 and (checkpoint / "trainer_state.json").is_file()
    assert f"after step {stopped}: run again" in capsys.readouterr().out
    resumed = prepare("p")
    resumed.add_callback(checkpoints.EndAtLastStep())
    with keep_handlers():
        try:
            resumed.train(resume_from_checkpoint=str(checkpoint))
        except checkpoints.AlreadyTrained:
            checkpoints.finish_training(resumed)
    assert list_evaluations(resumed) == list_evaluations(uninterrupted)
    for name in ("best_metric", "best_global_step"):
        assert getattr(resumed.state, name) == getattr(uninterrupted.state, name)


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_early_stopping_takes_evaluations(tmp_path, capsys, strategy):
    """The smoke run evaluates nothing: Transformers ended it with an AssertionError."""
    from transformers import EarlyStoppingCallback

    trainer = make_trainer(tmp_path, 2, [[1, 2]])
    trainer.args.eval_strategy = type(trainer.args.eval_strategy)(strategy)
    load_leaf("evaluation").prepare_evaluation(trainer, 3)
    stops = [one for one in trainer.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)]
    assert len(stops) == (strategy == "steps")
    for callback in stops:
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert ("no early stopping" in capsys.readouterr().out) == (strategy == "no")


def test_the_report_names_the_metrics_of_a_project():
    assert report.METRICS == load_leaf("evaluation").METRICS


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_classifier_s_loss_does_not_depend_on_how_a_step_is_divided(smoothing):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(7, 3, generator=generator), torch.randint(0, 3, (7,), generator=generator)
    labels[2] = -100
    loss = load_leaf("class_loss").ClassLoss(smoothing)
    whole = loss({"logits": logits}, labels)
    pairs = zip(logits.split(3), labels.split(3), strict=True)
    parts = [loss({"logits": part}, known, torch.tensor(6)) for part, known in pairs]
    assert sum(parts) == pytest.approx(whole.item())
    by_hand = -logits.log_softmax(-1)[labels >= 0]
    told = by_hand.gather(-1, labels[labels >= 0][:, None]).mean()
    assert whole.item() == pytest.approx(((1 - smoothing) * told + smoothing * by_hand.mean()).item())


def test_class_metrics_are_those_of_their_definitions():
    import numpy as np

    metrics = load_leaf("class_metrics").ClassMetrics(["a", "b", "never"])
    values = metrics(Values(label_ids=np.array([0, 0, 0, 1, -100]), predictions=np.array([0, 0, 1, 1, 2])))
    assert values == {"accuracy": 0.75, "macro_f1": pytest.approx((0.8 + 2 / 3) / 2)}
    table = {"labels": ["a", "b", "never"], "counts": [[2, 1, 0], [0, 1, 0], [0, 0, 0]]}
    assert metrics.mistakes == {"confusion": table}


def test_of_many_labels_the_mistakes_are_listed():
    """A table of 3,000 labels made run.json 99 MB, which `perfgen report` does not read."""
    import numpy as np

    names = [f"class {number}" for number in range(100_000)]
    metrics = load_leaf("class_metrics").ClassMetrics(names)
    values = metrics(Values(label_ids=np.array([7, 7, 7, 99_999]), predictions=np.array([8, 7, 8, 0])))
    assert values == {"accuracy": 0.25, "macro_f1": pytest.approx(0.5 / 4)}
    assert metrics.mistakes["mistakes"] == [
        {"label": "class 7", "answer": "class 8", "count": 2},
        {"label": "class 99999", "answer": "class 0", "count": 1},
    ]
    metrics(Values(label_ids=np.zeros(500, int), predictions=np.arange(500)))
    assert len(metrics.mistakes["mistakes"]) == 100
    metrics(Values(label_ids=np.array([1]), predictions=np.array([1])))
    assert metrics.mistakes == {"mistakes": []}


# ---- flags: every name of TrainingArguments


CONFIG = {"eval_data": 0.02, "training": {"learning_rate": 1e-4, "eval_strategy": "steps", "eval_steps": 10}}
CONFIG["training"] |= {"save_steps": 10, "load_best_model_at_end": True, "eval_on_start": True}


def parse(words: list[str], config=CONFIG, kind=None):
    from transformers import HfArgumentParser, TrainingArguments

    sys.argv = ["train.py", *words]
    parser = HfArgumentParser(kind or TrainingArguments)
    parser.set_defaults(**config["training"], output_dir="/tmp/none", use_cpu=True)
    return load_leaf("arguments").parse_arguments(parser, config)


@pytest.fixture(autouse=True)
def keep_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "terminal", load_leaf("terminal"))  # which arguments.py imports
    for name in ("WANDB_DIR", "WANDB_MODE", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_data_workers_without_room_for_their_batches_are_refused(monkeypatch, capsys):
    """A container's shared memory: a worker said so, and the training waited for it without an end."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Values(free=64 << 10))
    config = CONFIG | {"seq_len": 2048}
    assert parse(["--dataloader_num_workers", "0"], config).dataloader_num_workers == 0
    with pytest.raises(SystemExit) as ended:
        parse(["--dataloader_num_workers", "2", "--per_device_train_batch_size", "4"], config)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "room for 0.1 MiB, and 2 data workers hand over up to 0.8 MiB" in said
    assert "--dataloader_num_workers 0, or a container with --shm-size=1g" in said


def test_wandb_is_offline_only_where_nobody_logged_in(monkeypatch, tmp_path, capsys):
    """`wandb login` writes ~/.netrc, and sets no variable."""
    leaf = load_leaf("arguments")
    monkeypatch.setattr(leaf, "find_spec", lambda name: name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    args = Values(report_to=["wandb"], output_dir="runs", process_index=0)
    leaf.check_trackers(None, args)
    assert os.environ["WANDB_MODE"] == "offline" and "`wandb sync` sends it later" in capsys.readouterr().out
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    leaf.check_trackers(None, args)
    assert "WANDB_MODE" not in os.environ and not capsys.readouterr().out
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not leaf.has_wandb_key()


def list_flags() -> list[tuple[str, str]]:
    """Each field of SFTConfig (which has all of TrainingArguments) with values that a user would try."""
    if find_spec("trl") is None:
        return []
    from trl import SFTConfig

    return [(field.name, value) for field in dataclasses.fields(SFTConfig) if field.init for value in ("2", "x")]


@pytest.mark.parametrize(("name", "value"), list_flags())
def test_every_name_works_or_gives_one_line(name, value, capsys):
    from trl import SFTConfig

    if name == "deepspeed":
        pytest.skip("it starts a group of processes")
    try:
        parse([f"--{name}", value], kind=SFTConfig)
    except SystemExit as ended:
        assert ended.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("train.py: error: "), lines


@pytest.mark.parametrize(
    ("words", "config", "line"),
    [
        (
            ["--resume_from_checkpoint", "x"],
            CONFIG,
            "a run that can go on does so by itself, from the newest checkpoint in --output_dir",
        ),
        (["--nope", "3"], CONFIG, "no such argument: --nope 3; train.py --help lists them"),
        (["--learnin_rate", "3"], CONFIG, "no such argument: --learnin_rate 3; did you mean --learning_rate"),
        (["--max-stepz=3"], CONFIG, "no such argument: --max-stepz=3; did you mean --max_steps"),
        (["learning_rate"], CONFIG, "no such argument: learning_rate; train.py --help lists them"),
        (["--eval_strategy", "steps"], CONFIG | {"eval_data": None}, "nothing is held out"),
        (
            [],
            CONFIG | {"training": {"learning_rat": 1}},
            "training.learning_rat is no name of TrainingArguments; did you",
        ),
        (["--load_best_model_at_end", "true", "--save_steps", "3"], CONFIG, "round multiple of the evaluation steps"),
        (["--push_to_hub", "true"], CONFIG, "--push_to_hub takes a network and a token"),
        (["--report_to", "wandb"], CONFIG, "--report_to wandb: not installed"),
    ],
)
def test_what_cannot_be_is_one_line(words, config, line, capsys):
    if "wandb" in words and find_spec("wandb"):
        pytest.skip("wandb is installed")
    with pytest.raises(SystemExit):
        parse(words, config)
    assert line in capsys.readouterr().err.strip().splitlines()[0]


def test_the_log_of_a_project_goes_where_it_was_asked_to_go(tmp_path):
    """`make setup` and the Dockerfile install what is required: --report-to alone gave a project that could not start."""
    (tmp_path / "d.txt").write_text("a line\n" * 4000)
    request = Request(data=str(tmp_path / "d.txt"), hardware="cpu:1", offline=True)
    for tracker in ("none", "tensorboard"):
        document = build_document(pipeline.plan_request(replace(request, report_to=tracker)), name="p")
        pinned = [line.split("==")[0] for line in document.requirements]
        assert ("tensorboard" in pinned) == (tracker != "none")
        assert document.requirements == tuple(
            tomllib.loads(document.files["pyproject.toml"])["project"]["dependencies"]
        )


def test_a_project_knows_the_trackers_that_perfgen_offers_and_pins():
    assert load_leaf("arguments").TRACKERS == TRACKERS
    assert set(TRACKERS) <= dict(load_stack("train", "cpu").packages).keys()


@pytest.mark.parametrize(
    ("words", "keeps", "words_printed"),
    [
        ([], True, ""),
        (["--save_steps", "20"], True, ""),
        (["--save_steps", "2"], False, "--save_steps 2 is no multiple of --eval_steps 10"),
        (["--save_strategy", "no"], False, "saved by no, evaluated by steps"),
        (["--eval_strategy", "no"], False, ""),
    ],
)
def test_the_best_is_kept_where_it_is_saved_and_else_that_is_printed(words, keeps, words_printed, capsys):
    args = parse(words)
    assert args.load_best_model_at_end is keeps
    assert args.eval_on_start is ("--eval_strategy" not in words)
    assert words_printed in capsys.readouterr().out


def test_an_evaluation_without_anything_to_learn_is_turned_off(capsys):
    leaf, args = load_leaf("evaluation"), make_args(eval_on_start=True, load_best_model_at_end=True)
    rows = make_rows(2)
    assert leaf.keep_any(rows, args) is rows and leaf.keep_any(None, args) is None
    assert args.eval_on_start and not capsys.readouterr().out
    assert leaf.keep_any(rows.select([]), args) is None
    assert not args.eval_on_start and not args.load_best_model_at_end and args.eval_strategy == "no"
    assert "no evaluation: in no example that is held out" in capsys.readouterr().out


@pytest.fixture
def ask(load, tmp_path):
    """Makes SampleAnswers of rows, and a GPT-2 with 64 positions to answer; the module too."""
    from test_data_formats import make_tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = make_tokenizer(tmp_path / "t")
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    for name in ("token_count", "run_report", "fields", "terminal", "first_example"):
        load(name)
    module = load("answers")
    return lambda rows: (module.SampleAnswers(rows, tokenizer, 64, tmp_path), GPT2LMHeadModel(config), module)


def test_prompts_that_the_model_has_no_place_for_are_not_asked(ask):
    """GPT-2 has as many places as positions: one token more is an error of indices before the first step."""
    rows = [{"prompt": prompt, "completion": "b"} for prompt in ("long " * 80, "a" * 7, "What " * 10)]
    answers, model, _ = ask(rows)
    answers.on_train_begin(None, Values(is_world_process_zero=True, global_step=0), None, model=model)
    assert [row["prompt"] for row in answers.rows] == [rows[1]["prompt"], rows[2]["prompt"]]


def test_an_answer_that_takes_long_is_its_beginning(ask, monkeypatch):
    """Where a token takes longer than there is time for, one is made, and training begins."""
    answers, model, module = ask([{"prompt": "abc", "completion": "b"}])
    monkeypatch.setattr(module, "SECONDS", 0.0)
    made = []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **how: made.append(generate(**how)) or made[-1])
    monkeypatch.setattr(module, "list_stop_tokens", lambda *_: [])
    answers.answer(model)
    asked = answers.tokenizer("abc", add_special_tokens=False)["input_ids"]
    assert made[0].shape[1] == len(asked) + 1


@pytest.mark.parametrize("by_flag", [True, False])
@pytest.mark.parametrize("planned", [True, False])
def test_an_old_name_is_followed_although_the_plan_has_the_new_one(planned, by_flag):
    """TrainingArguments reads `gradient_checkpointing` only where `activation_checkpointing` is not set: it was silently ignored."""
    from transformers import HfArgumentParser, TrainingArguments

    given = {} if by_flag else {"gradient_checkpointing": not planned}
    sys.argv = ["train.py", *(["--gradient_checkpointing", str(not planned)] if by_flag else [])]
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(activation_checkpointing=planned, output_dir="/tmp/none", use_cpu=True, **given)
    config = {"training": given, "eval_data": None}
    assert load_leaf("arguments").parse_arguments(parser, config).activation_checkpointing is not planned
    sys.argv = ["train.py", "--gradient_checkpointing", "True", "--activation_checkpointing", "False"]
    assert not load_leaf("arguments").parse_arguments(parser, config).activation_checkpointing


def test_fp16_on_a_cpu_is_refused(capsys):
    """Accelerate computes in 32 bits there; run.json said fp16."""
    with pytest.raises(SystemExit):
        parse(["--fp16", "True"], {"training": {}, "eval_data": None})
    assert "--fp16: Accelerate computes in 32 bits on a CPU" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--completion_only_loss", "False"), ("--assistant_only_loss", "True")])
def test_what_data_py_decides_is_no_flag(words, capsys):
    """TRL reads it of rows without tokens; here it changed nothing."""
    pytest.importorskip("trl")
    from trl import SFTConfig

    with pytest.raises(SystemExit):
        parse(words, {"training": {}, "eval_data": None}, SFTConfig)
    assert f"{words[0]} is not read" in capsys.readouterr().err


def test_a_loss_in_chunks_is_not_smoothed():
    """Trainer took the labels from it, which ended the first step with a traceback."""
    with pytest.raises(SystemExit, match="--label_smoothing_factor needs all logits"):
        load_leaf("chunked_loss").chunk_loss(None, 0.1)


@pytest.mark.parametrize("classifies", [False, True])
def test_a_metric_that_no_evaluation_has_is_refused_in_one_line(tmp_path, classifies):
    """Trainer raised a KeyError after the first evaluation."""
    trainer = make_trainer(tmp_path, 2, [[1, 2, 3]])
    trainer.compute_metrics = len if classifies else None
    trainer.args.metric_for_best_model = "eval_perplexity" if classifies else "accuracy"
    has = "loss, accuracy, macro_f1" if classifies else "loss, perplexity"
    with pytest.raises(SystemExit, match=f"evaluations have {has}$"):
        load_leaf("evaluation").prepare_evaluation(trainer, None)


def test_liger_without_its_package_is_refused(capsys):
    """Trainer raised an ImportError once the model was loaded."""
    with pytest.raises(SystemExit):
        parse(["--use_liger_kernel", "True"], {"training": {}, "eval_data": None})
    assert "--use_liger_kernel: not installed; .venv/bin/pip install liger-kernel" in capsys.readouterr().err


def test_rows_without_padding_are_not_packed(capsys):
    """TRL raised a ValueError once the model was loaded."""
    pytest.importorskip("trl")
    from trl import SFTConfig

    with pytest.raises(SystemExit):
        parse(["--packing", "True"], {"training": {"padding_free": True}, "eval_data": None}, SFTConfig)
    assert "--packing: rows stand one after the other already (padding_free)" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        parse(["--neftune_noise_alpha", "5"], {"training": {"padding_free": True}, "eval_data": None}, SFTConfig)
    assert "plan with --pin packing=padded" in capsys.readouterr().err
