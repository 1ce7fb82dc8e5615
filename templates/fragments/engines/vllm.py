"""vLLM in this process, for whole batches: `./serve.sh` runs its own server for requests that come one by one."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from machine import peak_memory
from prompts import Prompts
from sampling import Sampling
from sources import find_source
from whole_answers import WholeAnswers

OF_THE_SERVER = ("max-num-queued-reqs", "shutdown-timeout", "data-parallel-size", "nnodes")
"""Flags that say nothing to one engine in one process: one copy computes a batch."""


class Engine(WholeAnswers):
    """The model of config.yaml, loaded; tokens in, tokens out."""

    def __init__(self, config: dict, here: Path) -> None:
        if (nodes := config["serving"]["flags"].get("pipeline-parallel-size", 1)) > 1:
            sys.exit(
                f"the model is divided over {nodes} nodes, and this is one process on one of them: "
                "start the server with `sbatch serve.sbatch`, and ask that"
            )
        serving = config["serving"]
        flags = {k.replace("-", "_"): v for k, v in serving["flags"].items() if k not in OF_THE_SERVER}
        if "speculative_config" in flags:  # JSON, as the flag has it
            flags["speculative_config"] = json.loads(flags["speculative_config"])
            if config.get("draft_model"):
                draft = {"model": str(find_source(config, "draft_model")), "revision": config.get("draft_revision")}
                flags["speculative_config"] |= draft
        self.llm = LLM(
            str(find_source(config, "model")),
            tokenizer=str(find_source(config, "tokenizer")) if config.get("tokenizer") else None,
            revision=config.get("revision"),
            **flags,
        )
        self.adapter = None
        if config.get("adapter"):
            self.adapter = LoRARequest(serving["name"], 1, str(find_source(config, "adapter")))
        self.stop_tokens = Prompts(config).stop_tokens
        super().__init__()

    def answer(self, prompt: list[int], sampling: Sampling) -> tuple[list[int], str]:
        (output,) = self.run([prompt], [sampling])
        return list(output.token_ids), output.finish_reason

    def generate(self, prompts: list[list[int]], samplings: list[Sampling]) -> list[list[int]]:
        """The new tokens of each prompt, end-of-sequence tokens included."""
        return [list(output.token_ids) for output in self.run(prompts, samplings)]

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        prompt = {"prompt_token_ids": list(tokens)}
        (output,) = self.llm.generate([prompt], [asked], use_tqdm=False, lora_request=self.adapter)
        rows = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
        return [scores[token].logprob for token, scores in rows]

    def run(self, prompts: list[list[int]], samplings: list[Sampling]) -> list:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        asked = [translate(each, self.stop_tokens) for each in samplings]
        outputs = self.llm.generate(inputs, asked, use_tqdm=False, lora_request=self.adapter)
        return [output.outputs[0] for output in outputs]

    @property
    def memory_gib(self) -> float:
        return peak_memory()["peak_memory_gib"]

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()


def translate(sampling: Sampling, stop_tokens: list[int]) -> SamplingParams:
    """With what ends a turn of the chat template too: vLLM takes the model's and the tokenizer's ends alone."""
    return SamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        stop_token_ids=stop_tokens if sampling.ends else [],
        ignore_eos=not sampling.ends,
        detokenize=False,
    )
