"""What a project contains that no technique decides, and why: the table behind `perfgen why`, and behind templates' comments.

One row is a keyword of an emitted call. Rows at ``training_arguments`` are written by the template as they stand here, after
those of the techniques; the others stand in the template, and are explained here. So are the keys of config.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from generator.case.tasks import find_task
from generator.case.vendors import list_vendors
from generator.case.vendors.vendor import TENSOR_CORE_MULTIPLE
from generator.case.workload import computes_rows
from generator.emit.environment import ALLOCATOR, EXPANDABLE
from generator.emit.plan_document import ABSENT, ParallelRecord, PlanDocument, ProjectPart
from generator.techniques.edits import Argument, Edits, write_literal
from generator.techniques.engines import list_engines


@dataclass(frozen=True, slots=True)
class Row:
    """``when``: all of these words hold (``find_facts``). ``value``: what the template writes, where it is a plain value.

    ``why`` is the comment beside it in the code, ``reason`` what `perfgen why` says.
    """

    place: str
    name: str
    when: tuple[str, ...]
    reason: str
    value: object = None
    why: str = ""


ROWS = (
    Row(
        "TrainingArguments",
        "per_device_eval_batch_size",
        ("train",),
        "the micro-batch: without a backward pass it needs less memory than a training step",
    ),
    Row(
        "training_arguments",
        "prediction_loss_only",
        ("train", "tokens"),
        "evaluation keeps the loss and not the logits of every token",
        value=True,
        why="logits of all tokens would fill the memory",
    ),
    Row(
        "training_arguments",
        "label_names",
        ("train", "unnamed-labels"),
        "the model's forward takes labels without naming them, and Trainer would drop the column",
        value=["labels"],
        why="forward does not name them, and Trainer would drop the column",
    ),
    Row(
        "training_arguments",
        "disable_tqdm",
        ("train",),
        "a line for each log in the place of a bar: it reads well in a file too",
        value=True,
        why="progress.py prints one line for each log",
    ),
    Row(
        "TrainingArguments",
        "max_length",
        ("train", "sft", "cuts", "by-trainer"),
        "seq_len of config.yaml: `why seq_len`",
    ),
    Row(
        "TrainingArguments",
        "use_cpu",
        ("train", "cpu"),
        "the plan is for the CPU; TrainingArguments would take any accelerator it sees",
    ),
    Row(
        "training_arguments",
        "pad_to_multiple_of",
        ("train", "sft", "tensor-cores", "by-trainer", "pads"),
        "tensor cores work on multiples of 8 in 16 bits",
        value=TENSOR_CORE_MULTIPLE,
    ),
    Row(
        "training_arguments",
        "ddp_timeout",
        ("train", "several"),
        "two hours: the other processes wait while the first one prepares the data",
        value=7200,
        why="seconds; the others wait while the first process prepares the data",
    ),
    Row(
        "training_arguments",
        "save_total_limit",
        ("train",),
        "two checkpoints: while one is written, the other is whole",
        value=2,
        why="while one is written, the other is whole",
    ),
    Row(
        "training_arguments",
        "logging_nan_inf_filter",
        ("train",),
        "off: the default hides steps whose loss is not a number",
        value=False,
        why="show a bad loss as it is",
    ),
    Row(
        "environment",
        ALLOCATOR,
        ("train", "cuda", "expandable"),
        "batches of many sizes, or a plan that fills the memory: segments that grow leave no holes",
        value=EXPANDABLE,
    ),
    Row(
        "environment",
        "PYTORCH_ENABLE_MPS_FALLBACK",
        ("mps",),
        "operators that PyTorch does not have for Metal are computed on the CPU, instead of ending the run",
        value="1",
    ),
    Row("from_pretrained", "id2label", ("text-classification", "train"), "the labels as they are in the data"),
    Row("from_pretrained", "label2id", ("text-classification", "train"), "the labels as they are in the data"),
    Row(
        "from_pretrained",
        "output_loading_info",
        ("loads",),
        "weights that the files lack end the run; Transformers would make them up, and say so in its log alone",
    ),
    Row(
        "from_pretrained",
        "problem_type",
        ("text-classification", "train"),
        "a row has one label, whatever the published head was trained for",
    ),
    Row(
        "from_pretrained",
        "ignore_mismatched_sizes",
        ("loads",),
        "weights of other sizes than the config's end the run with a line (loaded_weights.py); a head for other labels is a new one",
    ),
    Row("from_pretrained", "use_safetensors", ("loads",), "pickled weights can run code when they are loaded"),
    Row("from_pretrained", "trust_remote_code", (), "no code of the model's repository is run, nor asked about"),
    Row(
        "from_pretrained",
        "device_map",
        ("places-model",),
        "weights go straight to the device, without a second copy in host memory",
    ),
    Row("Trainer", "args", ("train",), "the arguments above: the plan's values, those of config.yaml, and your flags"),
    Row("Trainer", "train_dataset", ("train",), "your data, as data.py reads it"),
    Row("Trainer", "eval_dataset", ("train",), "what is held out of it: eval_data in config.yaml"),
    Row(
        "Trainer",
        "compute_loss_func",
        ("train", "text-classification"),
        "the mean over the rows of a step: Trainer's is one over micro-batches, multiplied by the processes",
    ),
    Row("Trainer", "compute_metrics", ("train", "text-classification"), "accuracy, macro F1 and the confusion table"),
    Row(
        "Trainer",
        "preprocess_logits_for_metrics",
        ("train", "text-classification"),
        "one class a row is kept, not its logits",
    ),
    Row("Trainer", "processing_class", ("train",), "the tokenizer, so that it is saved with the model"),
    Row(
        "Trainer",
        "data_collator",
        ("train", "causal-lm", "by-trainer"),
        "every block has seq_len tokens: there is nothing to pad",
    ),
    Row(
        "Trainer",
        "data_collator",
        ("train", "text-classification"),
        "pads each micro-batch to its longest text, not all to seq_len",
    ),
    Row(
        "DataCollatorForLanguageModeling",
        "pad_to_multiple_of",
        ("train", "sft", "by-loop"),
        "rows of a length that the devices can share: parts of one size, or one size for all stages",
    ),
    Row("Trainer", "callbacks", ("train", "callbacks"), "what the chosen techniques do between steps"),
    Row(
        "DataCollatorWithPadding",
        "pad_to_multiple_of",
        ("train", "text-classification", "tensor-cores"),
        "tensor cores work on multiples of 8 in 16 bits",
    ),
    Row(
        "train",
        "resume_from_checkpoint",
        ("train", "resumes"),
        "the newest checkpoint of this run that is complete, none for a new run",
    ),
    Row(
        "num_parameters",
        "only_trainable",
        ("train", "counts-with-numel", "by-trainer"),
        "a checkpoint belongs to a run that trains as many parameters; with adapters that is not the whole model",
    ),
    Row(
        "get_peft_model",
        "peft_config",
        ("train", "adapted-first"),
        "adapters are added to the whole model, before it is divided",
    ),
    Row(
        "tokenizer",
        "truncation",
        ("train", "text-classification"),
        "a text longer than seq_len is cut, as it was in training",
    ),
    Row("tokenizer", "max_length", ("train", "text-classification"), "seq_len of config.yaml: `why seq_len`"),
    Row("tokenizer", "return_tensors", ("scripted",), "PyTorch tensors: what the model takes"),
    Row("apply_chat_template", "add_generation_prompt", ("chat",), "ends with the mark that an answer comes now"),
    Row("apply_chat_template", "return_dict", ("chat",), "with the attention mask, which generate needs"),
    Row("generate", "max_new_tokens", ("generates",), "--new-tokens, and a flag of infer.py"),
    Row(
        "generate",
        "stopping_criteria",
        ("generates",),
        "ends the call that warms up and compiles, which is not timed as an answer",
    ),
    Row("generate", "streamer", ("generates",), "shows the answer as it is written; none with --json"),
    Row("TextStreamer", "skip_prompt", ("chat",), "the answer alone, without the turns before it"),
    Row(
        "decode", "skip_special_tokens", ("generates",), "the text alone, without marks such as the end of the sequence"
    ),
)
CONFIG_REASONS = {
    "model": "--model, else the embedded sample",
    "revision": "config.yaml pins the version of the model that was looked at",
    "adapter": "--model, a folder with an adapter: model is that which it was trained for",
    "tokenizer": "--tokenizer, else the folder beside the model's config that holds one",
    "draft_model": "--draft-model: the small model that proposes tokens",
    "draft_revision": "config.yaml pins the version of the small model that was looked at",
    "data": "--data, else the embedded sample's text",
    "data_config": "--data-config, else the default of the data set",
    "data_split": "--split, else train, else the only one; empty: chosen when the data is loaded",
    "data_revision": "the commit that was looked at; empty takes the newest version of the data",
    "text_column": "--text-column, else the column that holds texts",
    "label_column": "--label-column, else the column that holds labels",
    "columns": "--column, else as the data was recognised: what each column holds",
    "columns.messages": "--text-column or --column messages=, else the column of conversations",
    "columns.prompt": "--column prompt=, else the column that asks",
    "columns.input": "--column input=, else the column of what is asked about; put below the prompt",
    "columns.answer": "--column answer=, else the column that answers",
    "columns.system": "--column system=, else the column of the system's turn",
    "columns.tools": "--column tools=, else the column of the tools that may be called",
    "columns.chat_template_kwargs": "--column chat_template_kwargs=, else the column of that name: what a row gives its chat template",
    "columns.text": "--text-column, else the column that holds texts",
    "loss_on": "--loss-on, else assistant, or all of plain texts. assistant: what it says, its end of turn included; all: every token",
    "skip_bad": "--skip-bad: bad rows are counted and left out; else one ends the run",
    "seq_len": "--seq-len, else what holds the examples; never changed to gain speed",
    "output_dir": "a default: where checkpoints and the trained model go",
    "training": "every name of TrainingArguments may stand here, and is a flag of train.py too",
    "training.learning_rate": "--learning-rate, else the usual one; never changed to gain speed",
    "training.num_train_epochs": "--epochs, else 1; not in force where max_steps is above 0",
    "training.max_steps": "--max-steps; -1, a default: num_train_epochs says how long",
    "training.warmup_steps": "below 1, the share of all steps over which the learning rate rises from 0",
    "training.weight_decay": "a default, TrainingArguments' own; never changed to gain speed",
    "training.seed": "a default, TrainingArguments' own; never changed to gain speed",
    "training.lr_scheduler_type": "a default: TrainingArguments' own default; constant with the schedule-free optimizer, which "
    "averages weights in its place",
    "training.logging_steps": "a default: every step, so that no loss is missed and loss.svg has them all",
    "training.save_steps": "default: where the run is evaluated, if the best model is kept; else every 20 to 30 minutes by the predicted "
    "step time, or up to two hours where saves would else take more than 5 % of the run; PLAN.md has the figures",
    "training.eval_strategy": "a default: steps, or no where nothing is held out",
    "training.eval_steps": "a default: so that evaluation takes no more than 5 % of the predicted time of the run, where that is enough "
    "for one before the first step and one after the last",
    "training.eval_on_start": "a default: what the model knows before the first step is what the rest is compared with",
    "training.load_best_model_at_end": "a default: the model with the lowest evaluation loss is kept, not the last one",
    "training.metric_for_best_model": "a default: the evaluation loss",
    "training.report_to": "--report-to, else none",
    "eval_data": "--eval, else a default: 2 % of the data, or more of a small set",
    "eval_rows": "a default: 500 at most where nothing was asked for, and no more than there is time for; empty: all",
    "early_stopping": "--early-stopping, so many evaluations without a better loss; empty: never",
    "lora": "every name of peft's LoraConfig may stand here",
    "lora.r": "--lora-rank, else TRL's own",
    "lora.lora_alpha": "a default: twice the rank; with --adapter rslora PEFT's own, the same at every rank",
    "lora.lora_dropout": "--lora-dropout, else PEFT's own: none, so that no adapter keeps a copy of its input and a mask",
    "lora.use_dora": "--adapter dora: a trained magnitude beside the direction of each output's weights",
    "lora.use_rslora": "--adapter rslora: adapters are scaled by alpha / sqrt(r)",
    "machine": "what the plan was made for: the scripts compare the machine that they run on with it, and stop where it "
    "cannot do what is planned",
    "machine.device": "what the plan was made for: the device string of PyTorch",
    "machine.cpus": "the CPUs of a process that the plan was made for",
    "machine.gpus": "the GPUs of a node that the plan uses",
    "processes": "what the plan was made for: how train.py is launched, and what it must find before the first step",
    "processes.launcher": "the command that starts train.py, one process a device",
    "processes.preflight": "what preflight.py compares its measurements with",
    "processes.preflight.disk_gib": "of three checkpoints: two are kept while one is written",
    "processes.preflight.all_reduce_gb_per_s": "that each process should pass on while all sum a tensor",
    "processes.preflight.node_gb_per_s": "from a device to its neighbour in the node",
    "processes.preflight.nodes_gb_per_s": "from a device to one of another node",
    "processes.expected": "compared with what the library really prepared, so that no run is divided otherwise in silence",
    "processes.expected.wrapper": "the class that must hold the model",
    "processes.expected.zero_stage": "the ZeRO stage that DeepSpeed must run",
    "processes.expected.shards": "over how many processes states are divided",
    "processes.expected.sharded": "which parameters must be divided",
    "processes.expected.mesh": "the device mesh that parameters must lie on",
    "processes.expected.placements": "how parameters must lie on it",
    "processes.expected.divided": "the axes of the mesh that the model must be divided over, each with its size",
    "processes.expected.world_size": "how many processes must meet",
    "processes.expected.backend": "the torch.distributed backend that they must talk by",
    "processes.expected.device": "where the parameters must be",
    "rows": "how batch.py computes rows",
    "rows.weights": "the format that the model is loaded in: the decision precision",
    "rows.batch": "--concurrency: rows that are computed together",
    "rows.positions": "of the encoder for a row: --prompt-tokens, else what config.json says of images and sounds, and usual texts have; "
    "longer texts are refused, or cut where batch.py is asked to",
    "serving": "what the server is, and what it may be asked for: `perfgen why` has each value",
    "serving.engine": "what runs the model: the decision engine of the plan",
    "serving.weights": "how weights are stored: the decisions precision and quantization; checkpoint: as the checkpoint has them packed",
    "serving.converted": "the folder that convert.py writes the engine's weights to",
    "serving.name": "what /v1/models lists: the model's own name",
    "serving.host": "a default: this machine alone; 0.0.0.0 lets others in",
    "serving.port": "a default, vLLM's and SGLang's neighbours use it too: --port of serve.sh",
    "serving.max_context": "the longest prompt with its answer that fits as often as requests are computed together, at most all "
    "positions of the model",
    "serving.max_concurrency": "--concurrency: sequences that are computed together",
    "serving.max_waiting": "four for each that is computed, 16 at least: others are refused, so that nobody waits for long",
    "serving.max_new_tokens": "--new-tokens: of an answer whose request does not say",
    "serving.prompt_tokens": "--prompt-tokens: what the plan was made for, and bench.py measures",
    "serving.threads": "the CPUs that this process may use",
    "serving.cache": "how keys and values are kept: the decision cache of the plan",
    "serving.step": "how Transformers computes the next token: direct, where the engine knows the model's layers",
    "serving.compile": "the mode of torch.compile: the decision compile of the plan",
    "serving.proposed_tokens": "before a pass that checks them: the decision speculation of the plan",
    "serving.flags": "what the engine's own server is started with, so that it keeps within the limits",
    **{f"serving.flags.{name}": why for engine in list_engines() for name, why in engine.flag_reasons.items()},
    "predicted": "what bench.py compares its measurements with",
    "predicted.decode_tokens_per_s": "new tokens of one request by itself",
    "predicted.prefill_tokens_per_s": "prompt tokens of one request by itself",
    "predicted.ttft_s": "seconds to the first new token of one request by itself",
    "predicted.throughput_tokens_per_s": "new tokens of all requests that the plan is for",
    "predicted.peak_memory_gib": "of one device, or of the process on a CPU",
    "first_step": "what the plan was made for: train.py compares what it really trains with it, once; without this section it "
    "does not look",
    "first_step.trained": "the dtype of the trained weights: rounded more coarsely, small updates are lost",
    "first_step.frozen": "the dtype in which the frozen weights are stored",
    "first_step.gradients": "the dtype of the gradients, or in which DeepSpeed sums them",
    "first_step.states": "the dtype of the optimizer's states",
    "first_step.device": "where the weights must be",
    "first_step.attention": "the attention implementation that the model must use",
    "first_step.cached_casts": "false: autocast must not keep a 16-bit copy of every weight until the forward pass ends",
    "first_step.experts": "the dtype in which routed experts must be multiplied, whatever their weights are stored in",
    "first_step.dense_mask": "false: attention must be called without a mask, which would keep it from the flash kernel",
    "first_step.kernel": "flash: PyTorch must be able to take a kernel that never holds the scores",
    "first_step.gib": "the plan's parts of one device's memory: a difference above 10 % is printed",
    "first_step.gib.weights": "the weights that are trained, or frozen beneath adapters",
    "first_step.gib.adapters": "the trained adapters",
    "first_step.gib.gradients": "the gradients of the trained weights",
    "first_step.gib.states": "the optimizer's states, float32 copies of the weights included",
    "graphs": "what the graphs of the compiler are made for: another value is another graph, compiled anew",
    "graphs.global_batch": "--global-batch: sequences of an optimizer step, on however many devices; train.py ends where its flags make another",
    "graphs.multiple": "lengths are padded to this, so that few graphs are compiled, and fill the matrix units",
    "graphs.recompute": "the decision checkpointing: layers are computed anew in the backward pass",
    "graphs.arguments": "the plan's values of flags of train.py",
    "graphs.arguments.per_device_train_batch_size": "the plan's micro-batch: `why batch`",
    "graphs.arguments.gradient_accumulation_steps": "micro-batches of an optimizer step: `why batch`",
    "graphs.arguments.bf16": "the decision precision",
    "router_loss": "what balances the experts is added to the loss times this; null: as config.json of the model says",
    "machine.name": "the device that the plan was made for",
    "machine.compute_capability": "what the plan's kernels and dtypes need at least",
    "machine.targets": "what the plan's kernels and dtypes are for, as the compiler calls it: one of them",
    "machine.memory_gib": "memory of the device that the plan was made for",
    "machine.needs_gib": "the predicted peak of a process: with less memory free, a run would end without any",
}
"""By key; ``training.seed`` is one in a section. A key of config.yaml without a reason is a bug (``KeyError``)."""


def write_fixed(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> tuple[Argument, ...]:
    """What the template writes to TrainingArguments after the techniques' arguments."""
    return tuple(
        Argument(row.name, write_literal(row.value), row.why)
        for row in list_fixed(project, edits, parallel)
        if row.place == "training_arguments"
    )


def list_fixed(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> tuple[Row, ...]:
    """The rows that a project has."""
    facts = find_facts(project, edits, parallel)
    return tuple(row for row in ROWS if facts.issuperset(row.when))


def list_rows(document: PlanDocument) -> tuple[Row, ...]:
    """What no technique decides in a document's project: of one with a training of its own, its vendor's reasons."""
    leaf = document.modules.get("train")
    owner = next((v for v in list_vendors() if v.skeleton and v.skeleton.leaves["train"] == leaf), None)
    if owner is None or owner.skeleton is None:
        return list_fixed(document.project, document.edits, document.parallel)
    variables = dict(document.edits.environment)
    return tuple(
        Row("environment" if name in variables else "", name, (), why, variables.get(name))
        for name, why in owner.skeleton.reasons.items()
    )


def find_facts(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> frozenset[str]:
    """What rows ask for: the mode, the task, the device, and what else holds."""
    serves = project.mode == "infer" and find_task(project.task).writes
    by_row = computes_rows(project.mode, project.task)
    loads = not serves or bool(edits.infer_model_arguments)  # else the engine reads the model's files itself
    others = {
        "several": parallel is not None and parallel.world_size > 1,
        "by-trainer": parallel is None or parallel.loop is ABSENT,
        "by-loop": parallel is not None and parallel.loop is not ABSENT,
        "adapted-first": any(argument.name == "adapt" for argument in edits.model_arguments),
        "tensor-cores": project.pad_to_multiple_of is not None,
        "counts-with-numel": parallel is None or parallel.parameter_count_attribute is None,
        "resumes": parallel is None or not parallel.at_load,
        "callbacks": bool(edits.callbacks),
        # what SFTTrainer adds behind texts that stand one after the other are texts of one token each
        "pads": all(argument.name != "padding_free" for argument in edits.training_arguments),
        "cuts": all(argument.name != "max_length" for argument in edits.training_arguments),
        "expandable": ALLOCATOR in dict(edits.environment),
        "tokens": find_task(project.task).writes,
        "unnamed-labels": project.names_no_labels is True,
        "scripted": not serves and not by_row,
        "loads": loads,
        "generates": find_task(project.task).writes and not serves,
        "chat": project.task == "sft" and project.sft_format == "messages" and not serves,
        "places-model": project.device != "cpu"
        and loads
        and all(argument.name != "device_map" for argument in edits.infer_model_arguments),
    }
    return frozenset({project.mode, project.task, project.device} | {word for word, holds in others.items() if holds})


def list_keys(config: dict[str, Any], section: str = "") -> list[tuple[str, Any]]:
    """Every key at every depth, with dots, and its value."""
    keys = []
    for name, value in config.items():
        keys.append((section + name, value))
        if isinstance(value, dict):
            keys += list_keys(value, f"{section}{name}.")
    return keys
