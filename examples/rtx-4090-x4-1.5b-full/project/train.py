"""Train a language model on examples, on 4 NVIDIA GPUs.

Your values are in config.yaml, the reasons for the others in PLAN.md. `make train` resumes by itself.
"""

from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer

from callbacks import train_safely
from data import CHAT_TEMPLATE, check_labels, check_size, load_examples
from machine import check_machine
from parallel import check_launch

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
MODEL = CONFIG["model"]


def main() -> None:
    check_machine(CONFIG["machine"])
    check_launch()
    args = training_arguments()
    set_seed(args.seed)

    with args.main_process_first(local=False, desc="the data"):  # the others read what it has prepared
        examples = load_examples(CONFIG)
        tokenizer = AutoTokenizer.from_pretrained(MODEL, revision=CONFIG["revision"])
        tokenizer.chat_template = CHAT_TEMPLATE

    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        revision=CONFIG["revision"],
        dtype=torch.float32,  # trained weights stay in fp32, bf16 is for the arithmetic
        attn_implementation="sdpa",
        use_safetensors=True,
    )

    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=examples,
        processing_class=tokenizer,
    )
    if args.process_index == 0:
        check_labels(trainer.train_dataset, examples, CONFIG["seq_len"])
    check_size(trainer.train_dataset, args)
    train_safely(trainer, CONFIG["seq_len"])


def training_arguments() -> SFTConfig:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(SFTConfig)
    parser.set_defaults(
        **CONFIG["training"],
        output_dir=str(HERE / CONFIG["output_dir"]),
        max_length=CONFIG["seq_len"],
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        bf16=True,  # compute in bf16, keep weights in fp32
        tf32=True,  # what stays in fp32 uses TF32 products
        activation_checkpointing=False,  # FSDP does it: accelerate.yaml
        optim="adamw_torch_fused",
        pad_to_multiple_of=8,
        ddp_timeout=7200,  # seconds; the others wait while the first process prepares the data
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
