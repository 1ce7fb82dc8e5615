"""Train LoRA adapters on the 4-bit weights of a language model on examples, on one NVIDIA GPU.

Your values are in config.yaml, the reasons for the others in PLAN.md. `python train.py` resumes by itself.
"""

import sys
from contextlib import suppress
from pathlib import Path

import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer

from checkpoints import AlreadyTrained, SealCheckpoints, describe_run, find_newest_checkpoint
from data import CHAT_TEMPLATE, check_labels, check_size, load_examples
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
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    adapter = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **CONFIG["lora"])

    examples = load_examples(CONFIG)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, revision=CONFIG["revision"])
    tokenizer.chat_template = CHAT_TEMPLATE

    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        revision=CONFIG["revision"],
        quantization_config=quantization,  # base weights in 4 bits
        dtype=torch.bfloat16,  # frozen weights in 16 bits
        attn_implementation="sdpa",
        use_safetensors=True,
    )

    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=examples,
        processing_class=tokenizer,
        peft_config=adapter,
    )
    check_labels(trainer.train_dataset, examples, CONFIG["seq_len"])
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


def training_arguments() -> SFTConfig:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(SFTConfig)
    parser.set_defaults(
        **CONFIG["training"],
        output_dir=str(HERE / CONFIG["output_dir"]),
        max_length=CONFIG["seq_len"],
        per_device_train_batch_size=2,
        gradient_accumulation_steps=16,
        bf16=True,  # compute in bf16
        tf32=True,  # what stays in fp32 uses TF32 products
        activation_checkpointing=True,  # recompute activations in the backward pass
        activation_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused",
        pad_to_multiple_of=8,
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
