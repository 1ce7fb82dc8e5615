"""Tokens of the data whose embeddings nobody trained: adapters leave them as they are, and the tokens stay alike."""

import os
import sys
from itertools import chain
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open

from run_identity import list_weights

EXAMPLES = 1000
"""That are looked into."""
ROWS = 4096
"""Of the embeddings: their mean is off by a 64th of the distance that a row has from it."""
ZERO, NEAR = 1e-3, 0.05
"""Shares of the usual length of a row, and of its distance from the mean, below which no training left it. A token that
resize_token_embeddings adds lies 3e-5 from the mean (Transformers 5), vendors' reserved ones are zero."""
SHOWN = 8
INDICES, WHOLE = "trainable_token_indices", "modules_to_save"
"""What PEFT trains of embeddings beside adapters: rows, or whole layers."""
BESIDE = (INDICES, WHOLE)
ELSEWHERE = "A plan with --train full, or --pin parallelism=ddp, trains these too."


def refuse_beside(lora: dict, beside: tuple[str, ...]) -> None:
    """Ends the process where config.yaml asks for what PEFT does not train of a model in parts: it is a traceback."""
    asked = [name for name in BESIDE if lora.get(name) and name not in beside]
    if asked:
        instead = f"Take {beside[0]}, or a" if beside else "Take a"
        message = f"config.yaml, lora: PEFT has no {asked[0]} for layers that this plan divides. {instead}"
        sys.exit(f"{message} plan with --pin parallelism=ddp." if os.environ.get("RANK", "0") == "0" else 1)


def warn_of_untrained(model, source: Path | str, config: dict, tokenizer, dataset, beside=BESIDE) -> None:
    """Prints which they are, and what trains them too, but for those that ``lora`` of config.yaml trains.

    They are read in the files of the model: this process may have a part of it. ``beside``: what can train them.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    lora, (embedding, output, is_tied) = config["lora"], name_layers(model)
    place = find_weight(source, config.get("revision"), embedding)
    if place is None or embedding in (lora.get(WHOLE) or []):
        return
    layers = [embedding] if output is None else [embedding, output]
    asked = lora.get(INDICES) or []
    rows = asked if isinstance(asked, dict) else dict.fromkeys(layers, asked)
    trained = set.intersection(*map(set, rows.values()))
    untrained = [token for token in find_untrained(*place, list_tokens(dataset)) if token not in trained]
    if not untrained:
        return
    shown = ", ".join(repr(token) for token in tokenizer.convert_ids_to_tokens(untrained[:SHOWN]))
    shown += ", …" if len(untrained) > SHOWN else ""
    rows = {**rows, **{layer: sorted({*rows.get(layer, []), *untrained}) for layer in layers}}
    whole = dict.fromkeys([*(lora.get(WHOLE) or []), *layers])
    advice = {INDICES: rows[embedding] if is_tied else rows, WHOLE: f"[{', '.join(whole)}]"}  # beside what is there
    lines = [f"To train these too, in config.yaml under lora:\n  {name}: {advice[name]}" for name in beside]
    print(
        f"nobody trained the embeddings of {shown}, which the data has: they are zero, or the mean of all,\n"
        f"and adapters leave them so. {lines[0] if lines else ELSEWHERE}"
    )


def name_layers(model) -> tuple[str, str | None, bool]:
    """The last names of the embedding and of the output layer, which the first of several stages has not; whether they
    are one, or there is none."""
    names = {layer: name.rpartition(".")[2] for name, layer in model.named_modules()}
    output = names.get(model.get_output_embeddings(), "lm_head" if hasattr(model, "lm_head") else None)
    is_tied = output is None or model.config.get_text_config().tie_word_embeddings
    return names[model.get_input_embeddings()], output, is_tied


def find_weight(source: Path | str, revision: str | None, layer: str) -> tuple[Path, str] | None:
    """The file of the model that has the weight of a layer, and its name there."""
    folder = source if isinstance(source, Path) else None
    if folder is None:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        folder = Path(cached).parent if isinstance(cached, str) else None
    for path in list_weights(folder) if folder else []:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118, it is no dict
                if name.split(".")[-2:] == [layer, "weight"]:
                    return path, name
    return None


def list_tokens(dataset) -> list[int]:
    rows = (dataset[index]["input_ids"] for index in range(min(len(dataset), EXAMPLES)))
    return sorted(set(chain.from_iterable(rows)))


def find_untrained(path: Path, name: str, tokens: list[int]) -> list[int]:
    """Of the tokens those whose row is zero, or the mean of all rows."""
    with safe_open(path, "pt") as file:
        embeddings = file.get_slice(name)
        count = embeddings.get_shape()[0]
        sample = torch.cat([embeddings[row : row + 1] for row in range(0, count, -(-count // ROWS))]).float()
        rows = torch.cat([embeddings[token : token + 1] for token in tokens]).float()
    mean = sample.mean(dim=0)
    zero = rows.norm(dim=1) < ZERO * sample.norm(dim=1).median()
    near = (rows - mean).norm(dim=1) < NEAR * (sample - mean).norm(dim=1).median()
    return torch.tensor(tokens)[zero | near].tolist()


def complete_head(model) -> None:
    """PEFT's layer around an output layer of which rows are trained lacks its bias, which TRL's loss asks for."""
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):
        vars(head)["bias"] = head.original_module.bias
