"""Train a language model by TensorFlow: a step is one function that XLA compiles (jit_compile=True), once a shape.

Your values are in config.yaml, the reasons for the others in PLAN.md. It resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Transformers' TensorFlow models are of Keras 2; read at the import

import statistics
import time
from importlib.metadata import version
from pathlib import Path

import tf_keras
from transformers import PreTrainedTokenizerFast
from weights import load_model

import tensorflow as tf
from config_file import read_config
from finished_runs import record_run
from machine import check_machine, peak_memory
from sequences import prepare_rows, show_rows
from sources import find_source
from static_run import (
    IGNORED,
    Compilations,
    EvaluationStopped,
    RunArguments,
    StopOnSignal,
    check_loss,
    count_learned,
    find_checkpoints,
    hold_out,
    load_state,
    order_rows,
    pad_batch,
    parse_arguments,
    save_checkpoint,
    write_json,
)

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
GRAPHS = CONFIG["graphs"]
UNDECAYED = ["bias", "layernorm", "layer_norm", "ln_", "norm"]
"""Parts of the names of weights that do not decay."""


def main() -> None:
    check_machine(CONFIG["machine"])
    args = parse_arguments(CONFIG, HERE, **GRAPHS["arguments"])
    tf_keras.utils.set_random_seed(args.seed)
    source = find_source(CONFIG, "model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source, revision=CONFIG.get("revision"))
    rows = prepare_rows(CONFIG, tokenizer)
    train_rows, held_rows = hold_out(rows, CONFIG, args, lambda config: prepare_rows(config, tokenizer))
    show_rows(rows, tokenizer, Path(args.output_dir))
    model = load_model(source, CONFIG.get("revision"))
    run = Run(model, tokenizer, args, train_rows, held_rows)
    run.train()
    model.save_pretrained(args.output_dir, safe_serialization=True)
    tokenizer.save_pretrained(args.output_dir)
    run.write_report()
    record_run(HERE, Path(args.output_dir))


class Run:
    """The model, its optimizer, and how far they have come."""

    def __init__(self, model, tokenizer, args: RunArguments, train_rows, held_rows):
        self.model, self.args, self.train_rows, self.held_rows = model, args, train_rows, held_rows
        self.filler = tokenizer.eos_token_id or 0
        self.micro_batch = args.per_device_train_batch_size
        self.global_batch = args.check_batch(1, GRAPHS["global_batch"])
        self.steps = args.count_steps(len(train_rows), self.global_batch)
        self.optimizer = tf_keras.optimizers.AdamW(
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            beta_1=args.adam_beta1,
            beta_2=args.adam_beta2,
            epsilon=args.adam_epsilon,
            jit_compile=False,  # the step that calls it is compiled whole
        )
        self.optimizer.exclude_from_weight_decay(var_names=UNDECAYED)
        self.optimizer.build(model.trainable_variables)
        self.state = {
            "step": 0,
            "losses": [],
            "eval": {},
            "run": {
                "rows": len(train_rows),
                "global_batch": self.global_batch,
                "seed": args.seed,
                "seq_len": CONFIG["seq_len"],
                "parameters": int(model.num_parameters()),
            },
        }
        checkpoints = find_checkpoints(Path(args.output_dir))
        self.kept = tf.train.Checkpoint(model=model, optimizer=self.optimizer)
        if checkpoints:
            self.state = load_state(checkpoints[-1], self.state["run"])
            self.kept.read(str(checkpoints[-1] / "states")).assert_consumed()
        self.resumed_from = self.state["step"]
        self.compilations = Compilations(
            self.count_traces, lambda: "A Python value in the place of a tensor is traced anew each time."
        )
        self.seconds: list[float] = []
        self.tokens = 0

    @tf.function(jit_compile=True)
    def step(self, tokens: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """An optimizer step of micro-batches, (accumulated, rows, length) each. Gives the mean loss of its places."""
        learned = tf.reduce_sum(tf.cast(labels[:, :, 1:] != IGNORED, tf.float32))
        weights = self.model.trainable_variables
        total, sums = tf.constant(0.0), [tf.zeros_like(weight) for weight in weights]
        for number in range(self.args.gradient_accumulation_steps):
            with tf.GradientTape() as tape:
                loss = self.sum_losses(tokens[number], labels[number], mask[number], training=True) / learned
            gradients = tape.gradient(loss, weights)
            sums = [sum_ + tf.convert_to_tensor(gradient) for sum_, gradient in zip(sums, gradients, strict=True)]
            total += loss
        clipped, _ = tf.clip_by_global_norm(sums, self.args.max_grad_norm)
        self.optimizer.learning_rate.assign(rate)
        self.optimizer.apply_gradients(zip(clipped, weights, strict=True))
        return total

    @tf.function(jit_compile=True)
    def measure(self, tokens: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.sum_losses(tokens, labels, mask, training=False)

    def sum_losses(self, tokens: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Of each place's prediction of the next. What is not learned from is masked, not left out: shapes stay."""
        logits = self.model(input_ids=tokens, attention_mask=mask, training=training).logits[:, :-1]
        targets = labels[:, 1:]
        counted = tf.cast(targets != IGNORED, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(targets, 0), tf.cast(logits, tf.float32))
        return tf.reduce_sum(losses * counted)

    def count_traces(self) -> int:
        """Each trace of a function with jit_compile=True is a compilation."""
        return self.step.experimental_get_tracing_count() + self.measure.experimental_get_tracing_count()

    def train(self) -> None:
        self.stop = StopOnSignal()
        if self.held_rows and "before" not in self.state["eval"]:
            self.state["eval"]["before"] = self.evaluate_or_leave()
        if self.state.pop("left", None):
            print(f"step {self.state['step']}: evaluated, {self.evaluate_or_leave()}", flush=True)
        while self.state["step"] < self.steps:
            self.stop.leave(self.state["step"], self.args.save_strategy)
            began = time.perf_counter()
            loss = self.train_step(self.state["step"])
            self.state["step"] += 1
            self.seconds.append(time.perf_counter() - began)
            self.state["losses"].append(check_loss(loss, self.state["step"]))
            self.log_evaluate_save()
        if self.held_rows:
            self.state["eval"]["after"] = self.evaluate_or_leave()

    def evaluate_or_leave(self) -> dict[str, float]:
        return self.stop.evaluate_or_leave(self.evaluate, self.state["step"], self.args.save_strategy)

    def train_step(self, number: int) -> float:
        args = self.args
        rows = [self.train_rows[n] for n in order_rows(len(self.train_rows), self.global_batch, number, args.seed)]
        batch = pad_batch(rows, self.global_batch, GRAPHS["multiple"], CONFIG["seq_len"], self.filler)
        self.tokens += count_learned([batch])
        shape = (args.gradient_accumulation_steps, self.micro_batch, batch["input_ids"].shape[1])
        inputs = [
            tf.constant(batch[name].reshape(shape), tf.int32) for name in ("input_ids", "labels", "attention_mask")
        ]
        with self.compilations.expect_one("training step", shape):
            return float(self.step(*inputs, tf.constant(args.find_rate(number, self.steps), tf.float32)))

    def evaluate(self) -> dict[str, float]:
        """The mean loss of the held-out places. Rows without a label fill the last batch."""
        total, places = 0.0, 0
        rows = [*self.held_rows]
        for start in range(0, len(rows), self.micro_batch):
            self.stop.check_evaluation()
            piece = rows[start : start + self.micro_batch]
            batch = pad_batch(piece, self.micro_batch, GRAPHS["multiple"], CONFIG["seq_len"], self.filler)
            inputs = [tf.constant(batch[name], tf.int32) for name in ("input_ids", "labels", "attention_mask")]
            with self.compilations.expect_one("evaluation", batch["input_ids"].shape):
                total += float(self.measure(*inputs))
            places += count_learned([batch])
        return {"loss": total / places}

    def log_evaluate_save(self) -> None:
        args, step = self.args, self.state["step"]
        last = step == self.steps
        if step % args.logging_steps == 0 or last:
            mean = statistics.mean(self.state["losses"][-args.logging_steps :])
            print(f"step {step} of {self.steps}: loss {mean:.4f}, {self.seconds[-1]:.3g} s", flush=True)
        if args.eval_strategy == "steps" and step % args.eval_steps == 0 and self.held_rows and not last:
            try:
                print(f"step {step}: evaluated, {self.evaluate()}", flush=True)
            except EvaluationStopped:
                self.state["left"] = "an evaluation"
        if args.save_strategy == "steps" and (step % args.save_steps == 0 or last or self.stop.signum):
            save_checkpoint(args, self.state, lambda folder: self.kept.write(str(folder / "states")))

    def write_report(self) -> None:
        """run.json: written last, it says that the run is finished."""
        steady = self.seconds[1:] or self.seconds
        speed = {}
        if steady:
            per_step = self.tokens / len(self.seconds)
            speed = {
                "step_seconds": statistics.median(steady),
                "first_step_seconds": self.seconds[0],
                "tokens_per_step": per_step,
                "tokens_per_second": per_step / statistics.median(steady),
                "steps": steady,
            }
        evaluation = {"eval": self.state["eval"] | {"rows": len(self.held_rows)}} if self.held_rows else {}
        report = {
            "schema": 1,
            **speed,
            **peak_memory(),
            "run": self.state["run"],
            "losses": self.state["losses"],
            "finished_step": self.state["step"],
            "resumed_from": self.resumed_from,
            "processes": 1,
            "compiled": self.compilations.report(),
            "versions": {name: version(name) for name in ("tensorflow-cpu", "tf-keras", "transformers")},
            **evaluation,
        }
        write_json(Path(self.args.output_dir) / "run.json", report)


if __name__ == "__main__":
    main()
