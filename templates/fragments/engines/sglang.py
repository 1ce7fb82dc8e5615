"""SGLang in this process, for whole batches: `./serve.sh` runs its own server for requests that come one by one."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import sglang

from machine import peak_memory
from prompts import Prompts
from sampling import Sampling
from sources import find_source
from whole_answers import WholeAnswers

OF_THE_SERVER = ("max-queued-requests", "enable-metrics")
"""Flags that say nothing to an engine in one process."""


class Engine(WholeAnswers):
    """The model of config.yaml, loaded; tokens in, tokens out."""

    def __init__(self, config: dict, here: Path) -> None:
        if (nodes := config["serving"]["flags"].get("nnodes", 1)) > 1:
            sys.exit(
                f"the model is divided over {nodes} nodes, and this is one process on one of them: "
                "start the server with `sbatch serve.sbatch`, and ask that"
            )
        flags = {k.replace("-", "_"): v for k, v in config["serving"]["flags"].items() if k not in OF_THE_SERVER}
        self.engine = sglang.Engine(
            model_path=str(find_source(config, "model")),
            tokenizer_path=str(find_source(config, "tokenizer")) if config.get("tokenizer") else None,
            revision=config.get("revision"),
            skip_tokenizer_init=False,
            **flags,
        )
        # its own answer to SIGTERM, set with the first request, waits for what is being written: a batch loses nothing
        leave = signal.getsignal(signal.SIGTERM)
        self.engine.tokenizer_manager.auto_create_handle_loop()
        self.engine.loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, leave)
        self.stop_tokens = Prompts(config).stop_tokens
        super().__init__()

    def answer(self, prompt: list[int], sampling: Sampling) -> tuple[list[int], str]:
        (output,) = self.run([prompt], [sampling])
        return output["output_ids"], output["meta_info"]["finish_reason"]["type"]

    def generate(self, prompts: list[list[int]], samplings: list[Sampling]) -> list[list[int]]:
        """The new tokens of each prompt, end-of-sequence tokens included."""
        return [output["output_ids"] for output in self.run(prompts, samplings)]

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        output = self.engine.generate(
            input_ids=list(tokens), sampling_params={"max_new_tokens": 1}, return_logprob=True, logprob_start_len=0
        )
        return [row[0] for row in output["meta_info"]["input_token_logprobs"][1:]]

    def run(self, prompts: list[list[int]], samplings: list[Sampling]) -> list:
        return self.engine.generate(
            input_ids=prompts, sampling_params=[translate(each, self.stop_tokens) for each in samplings]
        )

    @property
    def memory_gib(self) -> float:
        return peak_memory()["peak_memory_gib"]

    def close(self) -> None:
        self.engine.shutdown()


def translate(sampling: Sampling, stop_tokens: list[int]) -> dict:
    """With what ends a turn of the chat template too: SGLang takes the model's and the tokenizer's ends alone."""
    named = {
        **{"max_new_tokens": sampling.max_new_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p},
        **{"min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty, "top_k": sampling.top_k or -1},
        "stop_token_ids": stop_tokens if sampling.ends else [],
    }
    seed = {"sampling_seed": sampling.seed} if sampling.seed is not None else {}
    return {**named, **seed, "ignore_eos": not sampling.ends}
