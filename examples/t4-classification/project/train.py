"""Train a text classifier, on one NVIDIA GPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

import sys
from contextlib import suppress
from pathlib import Path

import torch
import yaml
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from checkpoints import AlreadyTrained, SealCheckpoints, describe_run, find_newest_checkpoint
from data import check_size, list_labels, load_examples, tokenize
from machine import check_machine, peak_memory
from run_report import RunReport
from stopping import SaveOnSignal, StopOnBadLoss

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
MODEL = CONFIG["model"]


def main() -> None:
    if torch.cuda.device_count() > 1:  # Trainer would spread the batch over all that it sees (DataParallel)
        sys.exit("This plan uses one GPU, and PyTorch sees more: CUDA_VISIBLE_DEVICES=0 make train")
    check_machine(CONFIG["machine"])
    args = training_arguments()
    set_seed(args.seed)

    examples = load_examples(CONFIG)
    names = list_labels(examples)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, revision=CONFIG["revision"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    train_dataset = tokenize(examples, names, tokenizer, CONFIG["seq_len"])

    model = AutoModelForSequenceClassification.from_pretrained(
        MODEL,
        revision=CONFIG["revision"],
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        dtype=torch.float32,  # trained weights stay in fp32, fp16 is for the arithmetic
        attn_implementation="sdpa",
        use_safetensors=True,
    )
    model.config.pad_token_id = tokenizer.pad_token_id

    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train_dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8),
    )
    trainer.loss_is_scaled_for_ga = False  # a classifier's loss is a mean over its micro-batch
    check_size(trainer.train_dataset, args)

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG["seq_len"], trained_parameters)
    report = RunReport()
    for callback in (SaveOnSignal(), SealCheckpoints(run), StopOnBadLoss(), report):
        trainer.add_callback(callback)

    with suppress(AlreadyTrained):
        trainer.train(resume_from_checkpoint=find_newest_checkpoint(Path(args.output_dir), run))
    trainer.save_model()
    report.write(args, trainer.state, peak_memory())


def training_arguments() -> TrainingArguments:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(
        **CONFIG["training"],
        output_dir=str(HERE / CONFIG["output_dir"]),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=1,
        fp16=True,  # compute in fp16, keep weights in fp32
        optim="adamw_torch_fused",
        save_total_limit=2,  # while one is written, the other is whole
        logging_nan_inf_filter=False,  # show a bad loss as it is
        include_num_input_tokens_seen=True,
    )
    args, unknown = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    if unknown:
        parser.error(f"no such argument: {' '.join(unknown)}")
    return args


if __name__ == "__main__":
    main()
