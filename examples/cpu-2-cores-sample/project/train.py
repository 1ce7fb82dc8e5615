"""Train a language model on plain text, on this CPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import sys
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import AutocastKwargs
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
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
from config_file import read_config
from data import check_size, cut_blocks, load_texts, show_data
from evaluation import describe_evaluation, hold_out, prepare_evaluation
from final_model import is_complete, save_final_model
from finished_runs import record_run
from first_step import CheckFirstStep
from machine import check_machine, keep_freed_memory, peak_memory
from model_card import write_model_card
from parts import hash_every_row
from progress import print_lines
from run_folder import claim_folder
from run_identity import describe_run
from run_report import RunReport
from saved_weights import load_all_weights
from sources import find_source
from stopping import SaveOnSignal, StopOnBadLoss, run_main
from tokenizer import train_tokenizer

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    check_machine(CONFIG["machine"])
    keep_freed_memory(CONFIG["machine"])
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_folder(Path(args.output_dir), source)
    set_seed(args.seed)

    texts = load_texts(CONFIG)
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    tokenizer = train_tokenizer(texts["text"], Path(args.output_dir) / "tokenizer", config.vocab_size)
    blocks = cut_blocks(texts, tokenizer, CONFIG["seq_len"])
    train_dataset, eval_dataset = hold_out(
        blocks, CONFIG, args, lambda config: cut_blocks(load_texts(config), tokenizer, config["seq_len"])
    )

    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    model = AutoModelForCausalLM.from_config(
        config,
        trust_remote_code=False,
        dtype=torch.float32,  # trained weights stay in fp32, bf16 is for the arithmetic
        attn_implementation="sdpa",
    )

    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    # autocast's cache would keep a 16-bit copy of every weight until the forward pass ends
    trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)
    check_size(trainer.train_dataset, args)
    show_data(train_dataset, tokenizer, Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG, source, hash_every_row(texts), trained_parameters)
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
    write_model_card(args, CONFIG, result, task="causal-lm", from_scratch=True)
    report.write(args, trainer.state, result)
    record_run(HERE, Path(args.output_dir))


def training_arguments() -> TrainingArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=1,
        use_cpu=True,
        bf16=True,  # compute in bf16, keep weights in fp32
        optim="adamw_torch_fused",
        prediction_loss_only=True,  # logits of all tokens would fill the memory
        disable_tqdm=True,  # progress.py prints one line for each log
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
    )
    parser.set_defaults(**CONFIG["training"])
    return parse_arguments(parser, CONFIG)


if __name__ == "__main__":
    run_main(main)
