"""The data: examples in the form that SFTTrainer takes."""

import sys
from collections.abc import Iterator

from datasets import Dataset, Features, List, Value, load_dataset

COLUMNS = Features({"messages": List({"role": Value("string"), "content": Value("string")})})

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""The tokenizer has none of its own; this one is saved with the model."""


def load_examples(config: dict) -> Dataset:
    """The usable rows of the data set's train split."""
    source = load_dataset(config["data"], revision=config["data_revision"], split="train")
    return Dataset.from_generator(
        generate_examples,
        features=COLUMNS,
        gen_kwargs={"source": source, "config": config},
    )


def generate_examples(source: Dataset, config: dict) -> Iterator[dict]:
    """What training needs of each row. A bad row ends the run, or is counted and left out (skip_bad in config.yaml)."""
    usable = skipped = 0
    for number, row in enumerate(source, start=1):
        try:
            example = make_example(row, config["text_column"])
        except ValueError as error:
            if not config["skip_bad"]:
                sys.exit(f"{config['data']}, row {number}: {error}. Or set skip_bad: true in config.yaml.")
            skipped += 1
        else:
            usable += 1
            yield example
    if skipped:
        print(f"skipped {skipped} bad rows")
    if not usable:
        sys.exit(f"{config['data']}: no usable text")


def make_example(row: dict, text_column: str) -> dict:
    """The columns of one row; ValueError says what is wrong with it."""
    messages = row.get(text_column)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"no list of messages in column {text_column!r}, only {', '.join(map(str, row))}")
    turns = [{"role": read_text(message, "role"), "content": read_text(message, "content")} for message in messages]
    if not any(turn["role"] == "assistant" for turn in turns):
        raise ValueError("no message of the assistant to learn from")
    return {"messages": turns}


def read_text(row: dict, column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"no usable text in column {column!r} of {', '.join(map(str, row))}")
    text.encode()  # half a surrogate pair or undecodable bytes: ValueError
    return text


def check_labels(prepared, examples: Dataset, seq_len: int) -> None:
    """SFTTrainer leaves out examples that are all prompt up to ``seq_len``: say how many; stop if none is left."""
    if not any(token != -100 for labels in prepared["labels"] for token in labels):
        sys.exit(f"no trainable token: in no example does the answer begin within {seq_len} tokens")
    if "seq_lengths" not in prepared.column_names and len(prepared) < len(examples):
        print(f"{len(examples) - len(prepared)} examples have no answer within {seq_len} tokens: left out")


def check_size(dataset, args) -> None:
    """An optimizer step needs a global batch."""
    processes, accumulated = args.world_size, args.gradient_accumulation_steps
    batch = args.train_batch_size * accumulated * processes
    if len(dataset) < batch:
        sys.exit(
            f"{len(dataset)} sequences are fewer than one global batch of {batch} "
            f"({args.train_batch_size} x {accumulated} accumulated x {processes} processes): "
            "add data, or give a smaller --gradient_accumulation_steps."
        )
