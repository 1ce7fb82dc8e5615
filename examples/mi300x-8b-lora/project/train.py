"""Train LoRA adapters of a language model on examples, on one AMD GPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

import quiet_imports  # noqa: F401  # isort: skip

import sys
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer

from adapter_inputs import share_inputs
from answers import SampleAnswers
from arguments import parse_arguments
from chat_template import ensure_chat_template
from checkpoints import (
    AlreadyTrained,
    EndAtLastStep,
    FollowArguments,
    SealCheckpoints,
    find_newest_checkpoint,
    finish_training,
)
from compiler import check_compilers
from config_file import read_config
from data import check_size, check_tokens, load_examples, show_data, tokenize_examples
from evaluation import describe_evaluation, hold_out, keep_any, prepare_evaluation
from final_model import is_complete, save_final_model
from finished_runs import record_run
from first_step import CheckFirstStep
from length_groups import SeedLengthGroups
from loaded_weights import check_loaded
from machine import check_machine, peak_memory
from model_card import write_model_card
from padding import drop_padding_mask
from parts import hash_every_row
from progress import print_lines
from run_folder import claim_folder
from run_identity import describe_run
from run_report import RunReport
from sources import find_source
from stopping import SaveOnSignal, StopOnBadLoss, run_main
from untrained_tokens import complete_head, warn_of_untrained

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        training_arguments()  # prints them and ends, on any machine
    if torch.cuda.device_count() > 1:  # Trainer would spread the batch over all that it sees (DataParallel)
        sys.exit("This plan uses one GPU, and PyTorch sees more: HIP_VISIBLE_DEVICES=0 make train")
    check_machine(CONFIG["machine"])
    check_compilers("gcc")
    args = training_arguments()
    source = find_source(CONFIG, "model")
    claim_folder(Path(args.output_dir), source)
    set_seed(args.seed)
    adapter = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **CONFIG["lora"])

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
        dtype=torch.bfloat16,  # frozen weights in 16 bits
        attn_implementation="sdpa",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    check_tokens(tokenizer, model.config, train_dataset, eval_dataset)
    warn_of_untrained(model, source, CONFIG, tokenizer, train_dataset)

    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=adapter,
        callbacks=[SeedLengthGroups()],
    )
    complete_head(trainer.model)
    share_inputs(trainer.model)
    drop_padding_mask(trainer.model)
    check_size(trainer.train_dataset, args)
    show_data(train_dataset, examples, tokenizer, CONFIG["seq_len"], Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG, source, hash_every_row(examples), trained_parameters)
    report = RunReport(run, peak_memory, partial(describe_evaluation, trainer))
    seal = SealCheckpoints(run, report.write_figures)
    seal.begin_after_evaluations(trainer)
    for callback in (CheckFirstStep(trainer, CONFIG), SaveOnSignal(), seal, StopOnBadLoss()):
        trainer.add_callback(callback)
    print_lines(trainer, report)
    answers = SampleAnswers(held_out, tokenizer, CONFIG["seq_len"], Path(args.output_dir))
    trainer.add_callback(answers)
    trainer.add_callback(FollowArguments(run))
    trainer.add_callback(EndAtLastStep())
    checkpoint = find_newest_checkpoint(Path(args.output_dir), run)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except AlreadyTrained:
        if is_complete(Path(args.output_dir), trainer.state):
            record_run(HERE, Path(args.output_dir))  # a kill may have come just before
            return
        finish_training(trainer)
    save_final_model(trainer)
    result = report.build(args, trainer.state, **answers.describe())
    write_model_card(args, CONFIG, result, task="sft", from_scratch=False)
    report.write(args, trainer.state, result)
    record_run(HERE, Path(args.output_dir))


def training_arguments() -> SFTConfig:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(SFTConfig)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        max_length=CONFIG["seq_len"],
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=4,
        bf16=True,  # compute in bf16
        activation_checkpointing=True,  # recompute every fourth layer
        activation_checkpointing_kwargs={"use_reentrant": False, "every_n_layers": 4},
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length",  # texts of similar length together
        prediction_loss_only=True,  # logits of all tokens would fill the memory
        disable_tqdm=True,  # progress.py prints one line for each log
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
    )
    parser.set_defaults(**CONFIG["training"])
    return parse_arguments(parser, CONFIG)


if __name__ == "__main__":
    run_main(main)
