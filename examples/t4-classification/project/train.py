"""Train a text classifier, on one NVIDIA GPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import os

os.environ.setdefault(  # read once, as PyTorch is imported
    "PYTORCH_ALLOC_CONF",
    "expandable_segments:True",
)

import sys
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import AutocastKwargs
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from arguments import parse_arguments
from checkpoints import (
    AlreadyTrained,
    EndAtLastStep,
    FollowArguments,
    SealCheckpoints,
    find_newest_checkpoint,
    finish_training,
)
from class_loss import ClassLoss
from class_metrics import ClassMetrics, keep_class
from config_file import read_config
from data import check_size, check_tokens, list_labels, load_examples, show_data, tokenize
from evaluation import describe_evaluation, hold_out, prepare_evaluation
from final_model import is_complete, save_final_model
from finished_runs import record_run
from first_step import CheckFirstStep
from loaded_weights import check_loaded
from machine import check_machine, peak_memory
from model_card import write_model_card
from parts import hash_every_row
from progress import print_lines
from run_folder import claim_folder
from run_identity import describe_run
from run_report import RunReport
from saved_weights import load_all_weights
from sources import find_source
from stopping import SaveOnSignal, StopOnBadLoss, run_main

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    if torch.cuda.device_count() > 1:  # Trainer would spread the batch over all that it sees (DataParallel)
        sys.exit("This plan uses one GPU, and PyTorch sees more: CUDA_VISIBLE_DEVICES=0 make train")
    check_machine(CONFIG["machine"])
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_folder(Path(args.output_dir), source)
    set_seed(args.seed)

    examples = load_examples(CONFIG)
    names = list_labels(examples)
    examples, held_out = hold_out(examples, CONFIG, args, load_examples)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=CONFIG["revision"], trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    train_dataset = tokenize(examples, names, tokenizer, CONFIG["seq_len"])
    eval_dataset = held_out and tokenize(held_out, names, tokenizer, CONFIG["seq_len"])

    model, loading = AutoModelForSequenceClassification.from_pretrained(
        source,
        revision=CONFIG["revision"],
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        problem_type="single_label_classification",
        dtype=torch.float32,  # trained weights stay in fp32, fp16 is for the arithmetic
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading, adds_head=True)
    check_tokens(tokenizer, model.config, train_dataset, eval_dataset)
    model.config.pad_token_id = tokenizer.pad_token_id

    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
        compute_loss_func=ClassLoss(args.label_smoothing_factor),
        compute_metrics=ClassMetrics(names),
        preprocess_logits_for_metrics=keep_class,
    )
    # autocast's cache would keep a 16-bit copy of every weight until the forward pass ends
    trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)
    check_size(trainer.train_dataset, args)
    show_data(train_dataset, names, tokenizer, CONFIG["seq_len"], Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG, source, hash_every_row(examples), trained_parameters)
    report = RunReport(run, peak_memory, partial(describe_evaluation, trainer))
    seal = SealCheckpoints(run, report.write_figures)
    seal.begin_after_evaluations(trainer)
    for callback in (CheckFirstStep(trainer, CONFIG), SaveOnSignal(), seal, StopOnBadLoss()):
        trainer.add_callback(callback)
    print_lines(trainer, report)
    trainer.add_callback(FollowArguments(run))
    trainer.add_callback(EndAtLastStep())
    checkpoint = find_newest_checkpoint(Path(args.output_dir), run)
    load_all_weights(trainer)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except AlreadyTrained:
        if is_complete(Path(args.output_dir), trainer.state):
            record_run(HERE, Path(args.output_dir))  # a kill may have come just before
            return
        finish_training(trainer)
    save_final_model(trainer)
    result = report.build(args, trainer.state)
    write_model_card(args, CONFIG, result, task="text-classification", from_scratch=False)
    report.write(args, trainer.state, result)
    record_run(HERE, Path(args.output_dir))


def training_arguments() -> TrainingArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=1,
        fp16=True,  # compute in fp16, keep weights in fp32
        optim="adamw_torch_fused",
        disable_tqdm=True,  # progress.py prints one line for each log
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
    )
    parser.set_defaults(**CONFIG["training"])
    return parse_arguments(parser, CONFIG)


if __name__ == "__main__":
    run_main(main)
