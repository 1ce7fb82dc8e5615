"""Train LoRA adapters of a language model on examples, on 8 NVIDIA GPUs.

Your values are in config.yaml, the reasons for the others in PLAN.md. `make train` resumes by itself.
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
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from adapter_inputs import share_inputs
from adapter_parts import adapt_parts
from arguments import parse_arguments
from attention_kernel import explain_refusal
from background_save import SealWritten
from chat_template import ensure_chat_template
from checkpoints import AlreadyTrained, EndAtLastStep, FollowArguments, find_newest_checkpoint, finish_training
from compiler import check_compilers
from config_file import read_config
from data import check_size, check_tokens, load_examples, show_data, tokenize_examples
from division import Division
from evaluation import describe_evaluation, hold_out, keep_any, prepare_evaluation
from final_model import is_complete, save_final_model
from finished_runs import record_run
from first_step import CheckFirstStep
from launcher_summary import tell_of_end
from loop import Loop
from loop_arguments import LoopArguments
from machine import check_machine
from model_card import write_model_card
from parallel import (
    CheckParallel,
    DistributedSaveOnSignal,
    broadcast_from_rank0,
    check_launch,
    claim_shared_folder,
    measure_peak_of_all,
    shut_down,
)
from parts import hash_every_row
from progress import print_lines
from row_order import LoopReport
from run_identity import describe_run
from sources import find_source
from standstill import PACE
from stopping import StopOnBadLoss, run_main
from token_parts import TokenParts
from untrained_tokens import refuse_beside, warn_of_untrained
from vocabulary_parts import VocabularyParts

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    check_launch(CONFIG["processes"])
    check_machine(CONFIG["machine"])
    check_compilers("gcc")
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_shared_folder(Path(args.output_dir), source)
    division = Division(
        args,
        tp_size=4,
        fsdp_size=2,
        tokens=TokenParts(),
        vocabulary=VocabularyParts,
    )
    set_seed(args.seed)
    refuse_beside(CONFIG["lora"], ())
    adapter = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **CONFIG["lora"])

    with args.distributed_state.main_process_first():  # the others read what it has prepared
        examples = load_examples(CONFIG)
        examples, held_out = hold_out(examples, CONFIG, args, load_examples)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=CONFIG["revision"], trust_remote_code=False)
        ensure_chat_template(tokenizer)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        how = CONFIG["seq_len"], CONFIG["loss_on"], CONFIG["skip_bad"]
        train_dataset = tokenize_examples(examples, tokenizer, *how)
        eval_dataset = keep_any(held_out and tokenize_examples(held_out, tokenizer, *how, may_be_empty=True), args)

    model = division.load_model(
        AutoModelForCausalLM,
        source,
        revision=CONFIG["revision"],
        adapt=partial(adapt_parts, peft_config=adapter),
        dtype=torch.bfloat16,  # frozen weights in 16 bits
        attn_implementation="sdpa",
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_tokens(tokenizer, model.config, train_dataset, eval_dataset)
    warn_of_untrained(model, source, CONFIG, tokenizer, train_dataset, ())

    trainer = Loop(
        model=model,
        args=args,
        division=division,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        collate=DataCollatorForLanguageModeling(
            tokenizer.pad_token_id, pad_to_multiple_of=division.choose_row_multiple(CONFIG["seq_len"])
        ),
    )
    share_inputs(trainer.model)
    check_size(trainer.train_dataset, args)
    if args.process_index == 0:
        show_data(train_dataset, examples, tokenizer, CONFIG["seq_len"], Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = division.count_parameters(model)
    # its checkpoints go on in any number of processes
    run = describe_run(trainer, CONFIG, source, hash_every_row(examples), trained_parameters) | {"processes": "any"}
    report = LoopReport(run, measure_peak_of_all, partial(describe_evaluation, trainer))
    seal = SealWritten(run, report.write_figures)
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
    save_final_model(trainer)
    result = report.build(args, trainer.state, processes=CONFIG["processes"]["expected"]["world_size"])
    if args.process_index == 0:
        write_model_card(args, CONFIG, result, task="sft", from_scratch=False)
        report.write(args, trainer.state, result)
        record_run(HERE, Path(args.output_dir))
    shut_down(trainer.accelerator)


def training_arguments() -> LoopArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(LoopArguments)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=4,
        bf16=True,  # compute in bf16
        tf32=True,  # what stays in fp32 uses TF32 products
        activation_checkpointing=True,  # recompute activations in the backward pass
        activation_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused",
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
