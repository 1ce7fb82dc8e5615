"""Train a language model on plain text, on whatever it finds.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

from pathlib import Path

import torch
import yaml
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
    describe_run,
    find_newest_checkpoint,
    finish_training,
    name_tied_weights,
)
from data import check_size, cut_blocks, load_texts, show_data
from evaluation import describe_evaluation, hold_out, prepare_evaluation
from first_step import CheckFirstStep
from machine import peak_memory
from model_card import write_model_card
from progress import print_lines
from run_report import RunReport
from stopping import SaveOnSignal, StopOnBadLoss, run_main
from tokenizer import train_tokenizer

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
MODEL = HERE / CONFIG["model"]


def main() -> None:
    args = training_arguments()
    set_seed(args.seed)

    texts = load_texts(CONFIG)
    config = AutoConfig.from_pretrained(MODEL)
    tokenizer = train_tokenizer(texts["text"], Path(args.output_dir) / "tokenizer", config.vocab_size)
    blocks = cut_blocks(texts, tokenizer, CONFIG["seq_len"])
    train_dataset, eval_dataset = hold_out(
        blocks, CONFIG, args, lambda config: cut_blocks(load_texts(config), tokenizer, config["seq_len"])
    )

    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    model = AutoModelForCausalLM.from_config(
        config,
        dtype=torch.float32,
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
    check_size(trainer.train_dataset, args)
    show_data(train_dataset, tokenizer, Path(args.output_dir))
    prepare_evaluation(trainer, CONFIG["early_stopping"])

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG["seq_len"], trained_parameters)
    report = RunReport(run)
    for callback in (CheckFirstStep(trainer, CONFIG), SaveOnSignal(), SealCheckpoints(run), StopOnBadLoss()):
        trainer.add_callback(callback)
    print_lines(trainer, report)
    trainer.add_callback(FollowArguments(run))
    trainer.add_callback(EndAtLastStep())
    checkpoint = find_newest_checkpoint(Path(args.output_dir), run)
    name_tied_weights(model)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except AlreadyTrained:
        finish_training(trainer)
    trainer.save_model()
    report.write(args, trainer.state, peak_memory(), **describe_evaluation(trainer))
    write_model_card(args, CONFIG, task="causal-lm", from_scratch=True)


def training_arguments() -> TrainingArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=1,
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
