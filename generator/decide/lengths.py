"""What a reader of the plan must know about the length of sequences: what is cut, what is assumed, what another would cost."""

from __future__ import annotations

from dataclasses import replace

from generator.case.defaults import (
    HELD_PERCENT,
    choose_seq_len,
    count_sequences,
    describe_longest,
    measure_cut_share,
    measure_fill,
)
from generator.case.sources import Work
from generator.cost.of_case import build_cost_model
from generator.decide.candidates import Candidate
from generator.decide.notes import Note
from generator.decide.plan import Plan
from generator.decide.search import find_best
from generator.decide.space import open_space

WORTH_A_WORD = 0.75
"""A length that was given is compared with the one that the data needs where that is shorter than this share of it."""


def note_lengths(work: Work, plan: Plan) -> tuple[Note, ...]:
    """Of a training plan on examples; plain text is cut into blocks, and nothing of it is lost or padded."""
    workload = plan.case.workload
    if workload.mode == "infer":
        return ()
    if workload.task == "causal-lm":
        text = note_few_blocks(work)
        return (Note(kind="length", text=text),) if text else ()
    texts = (
        note_unknown(work, plan),
        note_cut(work),
        note_late_answers(work),
        note_few_sequences(work, plan),
        note_other_length(work, plan),
    )
    return tuple(Note(kind="length", text=text) for text in texts if text)


def note_few_blocks(work: Work) -> str | None:
    """Of plain text whose tokens nobody counted."""
    blocks = count_sequences(work.workload, work.data)
    if work.data is None or blocks is None or blocks >= work.workload.global_batch:
        return None
    return (
        f"by an estimate ({work.data.length_source}) the data is {blocks:,} sequences of {work.workload.seq_len:,} tokens: train.py "
        f"refuses fewer than one global batch of {work.workload.global_batch}; --seq-len or --global-batch makes it smaller"
    )


def note_unknown(work: Work, plan: Plan) -> str | None:
    if work.workload.fill_shares or plan.best.execution.padding_free:
        return None
    data = "no data was given" if work.data is None else f"the lengths in {work.data.path} are not known"
    return (
        f"{data}: every example is costed as {work.workload.seq_len:,} tokens; shorter ones take less time than planned"
    )


def note_cut(work: Work) -> str | None:
    share, data = measure_cut_share(work.data, work.workload.seq_len), work.data
    if data is None or share == 0:
        return None
    longest = describe_longest(data)
    if data.lengths_exact:
        return f"up to {share:.0%} of the examples are longer than seq_len {work.workload.seq_len:,} and are cut there; {longest}"
    if data.lengths_counted:
        return f"about {share:.0%} of the examples are longer than seq_len {work.workload.seq_len:,} and are cut there; {longest}"
    return (
        f"by an estimate, {share:.0%} of the examples may be longer than seq_len {work.workload.seq_len:,} and would be cut there; "
        f"{longest}; `python data.py` counts them"
    )


def note_late_answers(work: Work) -> str | None:
    """Examples of which nothing is learned."""
    data, workload = work.data, work.workload
    starts = data.answer_starts if data and workload.loss_on == "assistant" else ()
    late = sum(start >= workload.seq_len for start in starts)
    if not late:
        return None
    share = f"about {late / len(starts):.0%}" if late < len(starts) else "all"
    counted = "" if data and data.lengths_exact else " that were counted"
    return (
        f"in {share} of the examples{counted} the answer begins behind seq_len {workload.seq_len:,}: nothing is learned from them, and "
        "train.py leaves them out"
    )


def note_few_sequences(work: Work, plan: Plan) -> str | None:
    """Packed examples are fewer sequences than there are examples."""
    workload, run = plan.case.workload, plan.best.execution
    sequences = count_sequences(workload, work.data, packed=run.padding_free)
    if sequences is None or sequences >= workload.global_batch:
        return None
    return (
        f"packed, the data is about {sequences:,} sequences of {workload.seq_len:,} tokens, less than one global batch of "
        f"{workload.global_batch}: each epoch is one step on what there is; --no-packing or a smaller --global-batch makes more"
    )


def note_other_length(work: Work, plan: Plan) -> str | None:
    """What the length that the data needs would save, where a longer one was given; else what the usual one would cost."""
    data, workload, spec = work.data, plan.case.workload, work.spec
    if data is None or not data.token_quantiles:
        return None
    longest = describe_longest(data)
    needed = choose_seq_len(work.request, spec, data)[0]
    if work.request.seq_len:
        if needed >= WORTH_A_WORD * workload.seq_len:
            return None
        compared = compare_length(work, plan, needed, f"your {workload.seq_len:,}")
        return f"{longest}, and {HELD_PERCENT} % fit into {needed:,}: --seq-len {needed} {compared}"
    if data.lengths_exact and data.token_quantiles[-1] <= workload.seq_len:
        return None
    usual = workload.task_facts.seq_len
    usual = min(usual, spec.max_positions or usual)
    if usual <= workload.seq_len:
        return None
    return f"{longest}: --seq-len {usual} {compare_length(work, plan, usual, f'the default {workload.seq_len:,}')}"


def compare_length(work: Work, plan: Plan, seq_len: int, current: str) -> str:
    """How the best plan with another length on as many devices compares with ``current``: "would be 3.1 times slower than …"."""
    other = find_with_length(plan, work, seq_len)
    if other is None:
        return "would not fit, and needs more memory"
    ratio = other.estimate.step_seconds / plan.best.estimate.step_seconds
    if 0.98 < ratio < 1.02:
        needed, now = (f"{p.estimate.peak_memory_gib:.1f}" for p in (other, plan.best))
        memory = f"at {needed} instead of {now} GiB" if needed != now else f"at the same {now} GiB"
        return f"would be as fast as {current}, {memory}"
    return f"would be {describe_ratio(ratio)} than {current}"


def describe_ratio(ratio: float) -> str:
    """Of two times, in words; "1 times slower" says nothing."""
    slower, by = "slower" if ratio > 1 else "faster", max(ratio, 1 / ratio)
    return f"{by:.2g} times {slower}" if by >= 1.5 else f"{by - 1:.0%} {slower}"


def find_with_length(plan: Plan, work: Work, seq_len: int) -> Candidate | None:
    workload = replace(plan.case.workload, seq_len=seq_len, fill_shares=measure_fill(work.data, seq_len))
    other = replace(plan.case, workload=workload)
    devices = plan.best.layout.devices
    return find_best(open_space(other, build_cost_model(other)).limited(least=devices, most=devices))
