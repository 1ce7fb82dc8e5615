"""Train a language model on examples, on one NVIDIA GPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `make train` resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import os

os.environ.setdefault(  # read once, as PyTorch is imported
    "PYTORCH_ALLOC_CONF",
    "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64,expandable_segments:True",
)

import sys
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer

from abandoned_builds import release_abandoned_builds
from arguments import parse_arguments
from chat_template import ensure_chat_template
from checkpoints import AlreadyTrained, EndAtLastStep, FollowArguments, find_newest_checkpoint, finish_training
from compiler import check_compilers
from config_file import read_config
from data import check_size, check_tokens, load_examples, show_data, tokenize_examples
from evaluation import describe_evaluation, hold_out, keep_any, prepare_evaluation
from final_model import is_complete, save_final_model
from finished_runs import record_run
from first_step import CheckFirstStep
from launcher_summary import tell_of_end
from loaded_weights import check_loaded
from machine import check_machine
from model_card import write_model_card
from parallel import (
    CheckParallel,
    DistributedSaveOnSignal,
    DistributedSealCheckpoints,
    broadcast_from_rank0,
    check_launch,
    measure_peak_of_all,
    shut_down,
)
from parts import hash_every_row
from progress import print_lines
from run_folder import claim_folder
from run_identity import describe_run
from run_report import RunReport
from sources import find_source
from standstill import PACE
from stop_tokens import list_stop_tokens
from stopping import StopOnBadLoss, run_main
from varlen_attention import attend_within_rows

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    check_launch(CONFIG["processes"])
    check_machine(CONFIG["machine"])
    check_compilers("gcc")
    release_abandoned_builds(nodes=1)
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_folder(Path(args.output_dir), source)
    set_seed(args.seed)

    examples = load_examples(CONFIG)
    examples, held_out = hold_out(examples, CONFIG, args, load_examples)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=CONFIG["revision"], trust_remote_code=False)
    ensure_chat_template(tokenizer)
    how = CONFIG["seq_len"], CONFIG["loss_on"], CONFIG["skip_bad"]
    train_dataset = tokenize_examples(examples, tokenizer, *how)
    eval_dataset = keep_any(held_out and tokenize_examples(held_out, tokenizer, *how, may_be_empty=True), args)

    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        revision=CONFIG["revision"],
        dtype=torch.bfloat16,  # DeepSpeed keeps an fp32 master copy
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    check_tokens(tokenizer, model.config, train_dataset, eval_dataset)
    attend_within_rows(model)

    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
    )
    check_size(trainer.train_dataset, args)
    show_data(train_dataset, examples, tokenizer, CONFIG["seq_len"], Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG, source, hash_every_row(examples), trained_parameters)
    report = RunReport(run, measure_peak_of_all, partial(describe_evaluation, trainer))
    seal = DistributedSealCheckpoints(run, report.write_figures)
    seal.begin_after_evaluations(trainer)
    for callback in (
        PACE,
        CheckParallel(trainer, CONFIG["processes"]),
        CheckFirstStep(trainer, CONFIG),
        DistributedSaveOnSignal(),
        seal,
        StopOnBadLoss(),
    ):
        trainer.add_callback(callback)
    print_lines(trainer, report)
    trainer.add_callback(FollowArguments(run))
    trainer.add_callback(EndAtLastStep())
    checkpoint = broadcast_from_rank0(find_newest_checkpoint, Path(args.output_dir), run)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except AlreadyTrained:
        if broadcast_from_rank0(is_complete, Path(args.output_dir), trainer.state):
            if args.process_index == 0:
                record_run(HERE, Path(args.output_dir))  # a kill may have come just before
            return shut_down(trainer.accelerator)
        finish_training(trainer)
    model.generation_config.eos_token_id = list_stop_tokens(model, tokenizer)  # servers read there where an answer ends
    save_final_model(trainer)
    result = report.build(args, trainer.state)
    if args.process_index == 0:
        write_model_card(args, CONFIG, result, task="sft", from_scratch=False)
        report.write(args, trainer.state, result)
        record_run(HERE, Path(args.output_dir))
    shut_down(trainer.accelerator)


def training_arguments() -> SFTConfig:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(SFTConfig)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        deepspeed=str(HERE / "deepspeed.json"),  # ZeRO stage 2
        bf16=True,  # compute in bf16
        tf32=True,  # what stays in fp32 uses TF32 products
        activation_checkpointing=True,  # recompute activations in the backward pass
        activation_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused",
        padding_free=True,  # the texts of a batch one after the other
        max_length=None,  # data.py has cut them; padding_free refuses a length
        prediction_loss_only=True,  # logits of all tokens would fill the memory
        disable_tqdm=True,  # progress.py prints one line for each log
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
    )
    parser.set_defaults(**CONFIG["training"])
    return parse_arguments(parser, CONFIG)


if __name__ == "__main__":
    with tell_of_end():
        run_main(main)
