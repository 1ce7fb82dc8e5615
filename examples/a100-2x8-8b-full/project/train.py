"""Train a language model on examples, on 16 NVIDIA GPUs of 2 nodes.

Your values are in config.yaml, the reasons for the others in PLAN.md. `make train` resumes by itself.
"""

from contextlib import suppress
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, set_seed
from trl import SFTConfig, SFTTrainer

from checkpoints import AlreadyTrained, describe_run, find_newest_checkpoint
from data import CHAT_TEMPLATE, check_labels, check_size, load_examples
from machine import check_machine, peak_memory
from parallel import (
    CheckParallel,
    DistributedSaveOnSignal,
    DistributedSealCheckpoints,
    all_reduce_max,
    broadcast_from_rank0,
    check_launch,
    shut_down,
)
from run_report import RunReport
from stopping import StopOnBadLoss

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
MODEL = CONFIG["model"]


def main() -> None:
    check_machine(CONFIG["machine"])
    check_launch(CONFIG["processes"])
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

    trained_parameters = trainer.model.num_parameters(only_trainable=True)
    run = describe_run(trainer, CONFIG["seq_len"], trained_parameters)
    report = RunReport()
    for callback in (
        CheckParallel(trainer, CONFIG["processes"]),
        DistributedSaveOnSignal(),
        DistributedSealCheckpoints(run),
        StopOnBadLoss(),
        report,
    ):
        trainer.add_callback(callback)

    checkpoint = broadcast_from_rank0(find_newest_checkpoint, Path(args.output_dir), run)
    with suppress(AlreadyTrained):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")  # the result is one plain model
    trainer.save_model()
    peak = {name: all_reduce_max(value) for name, value in peak_memory().items()}  # of the process that needed most
    report.write(args, trainer.state, peak)
    shut_down(trainer.accelerator)


def training_arguments() -> SFTConfig:
    """The plan's values and those of config.yaml; each is a flag too, as in `--max_steps 3`."""
    parser = HfArgumentParser(SFTConfig)
    parser.set_defaults(
        **CONFIG["training"],
        output_dir=str(HERE / CONFIG["output_dir"]),
        max_length=CONFIG["seq_len"],
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        bf16=True,  # compute in bf16, keep weights in fp32
        tf32=True,  # what stays in fp32 uses TF32 products
        activation_checkpointing=False,  # activations fit; TRL would recompute
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
