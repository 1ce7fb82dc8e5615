"""A server at work: requests come as others end, so that every step has sequences to go on with and prompts to begin."""

from __future__ import annotations

from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.decode import Step, compute_step
from generator.cost.device import Rates
from generator.cost.engines import find_engine
from generator.cost.execution import Execution
from generator.cost.prefill import compute_pass_seconds, compute_prefill_seconds
from generator.cost.shape import Shape


class Serving(NamedTuple):
    """Of one copy of the model, with ``Execution.micro_batch`` requests in it at a time.

    ``decoding`` of them get tokens, the others wait for their first. ``prompts``: seconds of a step that prompts take of it."""

    step: Step
    prompts: float
    decoding: float
    ttft_seconds: float

    @property
    def seconds_per_token(self) -> float:
        """Between two tokens of an answer."""
        return self.step.busy + self.step.beyond + self.prompts

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all answers together."""
        return self.decoding / self.seconds_per_token


def compute_serving(shape: Shape, run: Execution, rates: Rates) -> Serving:
    """Steady state of ``run.micro_batch`` users, each of whom asks again once answered: prompts of ``run.seq_len`` tokens, answers
    of ``run.new_tokens``. In a step as many requests begin as end, the ``1 / new_tokens``-th part of those that get tokens: to these
    their prompt's pass gives the first, the others decode."""
    engine = find_engine(run.engine)
    users, answer = float(run.micro_batch), float(max(run.new_tokens, 1))
    context = run.seq_len + answer / 2
    # each stage of layers computes another part of the users meanwhile
    groups = run.pp if engine.mixes_prompts else 1
    decoding = users
    if engine.mixes_prompts and engine.batched_tokens:
        # tokens of a step: one of each that decodes, and its share of the prompts that begin
        decoding = min(users, groups * max(1.0, engine.batched_tokens / (1 + (run.seq_len - 1) / answer)))
    active = run.but(micro_batch=max(1, round(decoding / groups * (1 - 1 / answer))))
    step = compute_step(shape, active, rates, context) if answer > 1 else Step(0.0, 0.0)
    prompts = decoding / groups / answer * compute_prompt_seconds(shape, run, rates, decoding / groups)
    waited = c.STAGE_WAIT * (groups - 1) * (step.busy + step.beyond + prompts)
    step = Step(step.busy, step.beyond + waited)
    seconds = step.busy + step.beyond + prompts
    first = compute_first_seconds(shape, run, rates, active, step, seconds)
    # Little's law: those that do not decode are waiting, as many as come in the time that one waits
    waiting = (users - decoding) * seconds * answer / decoding
    return Serving(step=step, prompts=prompts, decoding=decoding, ttft_seconds=max(first, waiting))


def compute_prompt_seconds(shape: Shape, run: Execution, rates: Rates, decoding: float) -> float:
    """What one prompt adds to the steps that compute it. Beside a batch of next tokens its products find the weights read."""
    alone = compute_prefill_seconds(shape, run.but(micro_batch=1), rates)
    engine = find_engine(run.engine)
    if not engine.mixes_prompts:
        return alone
    tokens = run.seq_len * decoding / max(run.new_tokens, 1)
    together, before = (
        compute_pass_seconds(shape, run, rates, engine, rows) / run.tp for rows in (decoding + tokens, decoding)
    )
    apart = compute_pass_seconds(shape, run, rates, engine, float(run.seq_len)) / run.tp
    # of a prompt alone, the launches and reads that are shared here are in it
    return max(0.0, alone - apart + (together - before) * run.seq_len / tokens)


def compute_first_seconds(
    shape: Shape, run: Execution, rates: Rates, active: Execution, step: Step, seconds: float
) -> float:
    """From a request to its first token, where nobody else waits: half a step until the next begins, then the steps beside the others'
    tokens that its prompt takes, and what it adds to them. Of one user alone the server waits."""
    engine = find_engine(run.engine)
    if run.micro_batch == 1:
        return engine.request_seconds + compute_prefill_seconds(shape, run, rates) + step.beyond
    if not engine.mixes_prompts:
        return seconds / 2 + compute_prefill_seconds(shape, run.but(micro_batch=1), rates)
    room = max(1.0, engine.batched_tokens - active.micro_batch) if engine.batched_tokens else float(run.seq_len)
    steps = -(-run.seq_len // room)
    added = compute_prompt_seconds(shape, run, rates, active.micro_batch)
    return engine.request_seconds + seconds / 2 + steps * (step.busy + step.beyond) + added
