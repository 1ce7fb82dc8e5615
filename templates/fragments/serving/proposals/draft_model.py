"""Tokens that the model may say next, proposed by a small one: the model checks several in one pass."""

import sys
from itertools import takewhile

from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from loaded_weights import check_loaded
from prompts import Prompts
from slots import Together, find_short_memory
from sources import find_source


class Proposer:
    """The model of config.yaml's draft_model, with one row of keys and values."""

    def __init__(self, config: dict, prompts: Prompts, model: nn.Module) -> None:
        """On the device of ``model`` and in its dtype."""
        source, revision = find_source(config, "draft_model"), config.get("draft_revision")
        own = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False).get_vocab()
        if own != prompts.tokenizer.get_vocab():
            sys.exit(f"config.yaml, draft_model: {source} has another vocabulary than the model, and cannot propose")
        parameter = next(model.parameters())
        small, loading = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision,
            dtype=parameter.dtype,
            device_map=str(parameter.device),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        check_loaded(small, loading)
        if problem := find_short_memory(small, context := config["serving"]["max_context"]):
            sys.exit(f"config.yaml, draft_model: {problem}, which cannot be taken back")
        self.decoder = Together(small, 1, context)
        self.held: list[int] = []
        """Tokens that stand in its row."""

    def propose(self, tokens: list[int], count: int) -> list[int]:
        """What it would say next. Of what it has read before, all that the text still begins with is kept."""
        both = zip(self.held, tokens[:-1], strict=False)  # at least the last one is read
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        proposed = [int(self.decoder.read_prompt(0, tokens[known:], known).argmax())]
        while len(proposed) < count:
            past = len(tokens) + len(proposed) - 1
            proposed.append(int(self.decoder.step(proposed[-1:], [past])[0].argmax()))
        self.held = [*tokens, *proposed[:-1]]
        return proposed
