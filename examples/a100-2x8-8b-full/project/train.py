"""Train a language model on plain text, on 16 NVIDIA GPUs of 2 nodes.

Your values are in config.yaml, the reasons for the others in PLAN.md. `make train` resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import sys
from functools import partial
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from arguments import parse_arguments
from attention_kernel import explain_refusal
from checkpoints import AlreadyTrained, EndAtLastStep, FollowArguments, find_newest_checkpoint, finish_training
from compiler import check_compilers
from config_file import read_config
from data import check_size, check_tokens, cut_blocks, load_texts, show_data
from evaluation import describe_evaluation, hold_out, prepare_evaluation
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
    claim_shared_folder,
    measure_peak_of_all,
    shut_down,
)
from parts import hash_every_row
from progress import print_lines
from read_once import hold_places
from run_identity import describe_run
from run_report import RunReport
from sources import find_source
from standstill import PACE
from stopping import StopOnBadLoss, run_main

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    check_launch(CONFIG["processes"])
    check_machine(CONFIG["machine"])
    check_compilers("g++", "gcc")
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_shared_folder(Path(args.output_dir), source)
    set_seed(args.seed)

    # the first process of all prepares it, then that of each node, whose disk may be its own; the others read
    state = args.distributed_state
    with state.main_process_first(), state.local_main_process_first():
        texts = load_texts(CONFIG).shuffle(seed=args.seed)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=CONFIG["revision"], trust_remote_code=False)
        blocks = cut_blocks(texts, tokenizer, CONFIG["seq_len"])
        train_dataset, eval_dataset = hold_out(
            blocks, CONFIG, args, lambda config: cut_blocks(load_texts(config), tokenizer, config["seq_len"])
        )

    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        revision=CONFIG["revision"],
        # one process of a node reads, the others are given theirs
        device_map=None if args.local_process_index == 0 else "meta",
        dtype=torch.float32,  # trained weights stay in fp32, bf16 is for the arithmetic
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    check_tokens(tokenizer, model.config, train_dataset, eval_dataset)
    hold_places(model)

    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    check_size(trainer.train_dataset, args)
    if args.process_index == 0:
        show_data(train_dataset, tokenizer, Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG, source, hash_every_row(texts), trained_parameters)
    report = RunReport(run, measure_peak_of_all, partial(describe_evaluation, trainer))
    seal = DistributedSealCheckpoints(run, report.write_figures)
    seal.begin_after_evaluations(trainer)
    for callback in (
        PACE,
        CheckParallel(trainer, CONFIG["processes"]),
        CheckFirstStep(trainer, CONFIG, explain_refusal),
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
    trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")  # the result is one plain model
    save_final_model(trainer)
    result = report.build(args, trainer.state)
    if args.process_index == 0:
        write_model_card(args, CONFIG, result, task="causal-lm", from_scratch=False)
        report.write(args, trainer.state, result)
        record_run(HERE, Path(args.output_dir))
    shut_down(trainer.accelerator)


def training_arguments() -> TrainingArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=4,
        bf16=True,  # compute in bf16, keep weights in fp32
        tf32=True,  # what stays in fp32 uses TF32 products
        optim="adamw_torch_fused",
        use_liger_kernel=True,  # fused cross-entropy, RMSNorm, rotary and SwiGLU
        prediction_loss_only=True,  # logits of all tokens would fill the memory
        disable_tqdm=True,  # progress.py prints one line for each log
        ddp_timeout=7200,  # seconds; the others wait while the first process prepares the data
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
    )
    parser.set_defaults(**CONFIG["training"])
    return parse_arguments(parser, CONFIG)


if __name__ == "__main__":
    with tell_of_end():
        run_main(main)
