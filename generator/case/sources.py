"""The model and the data that a request names, and whether they serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from generator.bundle import find_sample_file
from generator.case.defaults import Origin, count_sequences, count_steps, fill_workload, trace_values
from generator.case.held_out import HeldOut, count_held_rows, leave_global_batch, read_held_out
from generator.case.request import Request
from generator.case.tasks import find_task
from generator.case.workload import DRAFT_PIN, Draft, Served, Workload, check_trained, check_workload, choose_task
from generator.errors import SourceError, UsageError
from generator.inputs.data_files import BYTES_PER_TOKEN, DataSource, list_data_files, read_data
from generator.inputs.lengths import count_lengths
from generator.inputs.local_files import LocalSource, describe_local_source, expand_home
from generator.inputs.model_files import find_tokenizer_template, list_tokenizer_parts, read_model, read_tokenizer
from generator.inputs.model_sizes import read_spec
from generator.inputs.model_source import ModelSource
from generator.inputs.tokenizer_revision import find_tokenizer_revision
from generator.model import Attended, ModelSpec

COUNTED_MARGIN = 1.1
"""Of tokens of which a part was counted (ours); without a tokenizer a token may be a single character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done, whatever the machine: the request with its files read. ``data`` None: none was given."""

    request: Request
    source: ModelSource
    data: DataSource | None
    spec: ModelSpec
    workload: Workload
    held_out: HeldOut | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """where each value of the user's comes from, by its name in ``workload``"""
    draft: ModelSource | None = None
    """the small model that proposes tokens"""
    local: tuple[LocalSource, ...] = ()
    """what the project will read of this machine's files; the embedded sample is no part of them"""


def read_work(request: Request) -> Work:
    """Read the model and the data, and fill in the defaults. Raises ``UsageError``, ``SourceError``."""
    typed = expand_homes(request)
    request, source, data = read_sources(typed)
    spec = read_spec(source)
    request = replace(request, task=choose_task(request.mode, request.task, "task" in request.given, spec))
    workload, draft = add_draft(fill_workload(request, spec, source, data), request)
    if source.adapter is not None:
        facts = Served(rank=source.adapter.rank, bytes=source.adapter.bytes, form=source.adapter.form)
        workload = replace(workload, served_adapter=facts)
        if not workload.serves:
            raise UsageError(
                f"{request.model} holds an adapter, and --task {workload.task} takes whole models",
                "merge it into its model",
            )
    if workload.from_scratch and workload.mode == "train":  # how published weights are packed says nothing of new ones
        spec = replace(spec, quantization=None)
    check_workload(workload, spec)
    check_sources(request, workload, source, data)
    held_out = read_held_out(request, data)
    held_rows = 0
    if held_out and not held_out.file and (sequences := count_sequences(workload, data)) is not None:
        held_rows = leave_global_batch(count_held_rows(sequences, held_out.share), sequences, workload.global_batch)
        if not held_rows and request.early_stopping is not None:
            raise UsageError(
                f"--early-stopping {request.early_stopping} needs an evaluation, and of {sequences:,} sequences none is left "
                f"beside a global batch of {workload.global_batch:,}",
                "give --eval FILE, a smaller --global-batch, or more data",
            )
    return Work(
        request=request,
        source=source,
        data=data,
        spec=spec,
        workload=replace(workload, steps=count_steps(workload, data, held_rows=held_rows)),
        held_out=held_out,
        draft=draft,
        origins=trace_values(request, workload, spec, data),
        local=list_local_sources(typed, request, source, data, held_out, draft),
    )


def add_draft(workload: Workload, request: Request) -> tuple[Workload, ModelSource | None]:
    """The model of --draft-model; who names one asks for it. Raises ``SourceError``."""
    if request.draft_model is None:
        return workload, None
    source = read_model(request.draft_model, offline=request.offline, mode="infer")
    spec = read_spec(source)
    cached = sum(kind.layers * kind.cached for kind in spec.attended)
    held = sum(kind.layers * kind.cached for kind in map(Attended.as_held, spec.attended))
    draft = Draft(
        name=spec.name, params=spec.params, cached=cached, vocab=spec.vocab, held=held if held != cached else 0
    )
    pins = (*workload.pins, DRAFT_PIN)
    return replace(workload, draft=draft, pins=pins), source


def expand_homes(request: Request) -> Request:
    paths = {
        name: expand_home(getattr(request, name))
        for name in ("model", "config", "tokenizer", "draft_model", "data", "eval")
    }
    return replace(request, **paths)


def list_local_sources(
    typed: Request,
    request: Request,
    source: ModelSource,
    data: DataSource | None,
    held_out: HeldOut | None,
    draft: ModelSource | None,
) -> tuple[LocalSource, ...]:
    """Model, tokenizer and data that are paths. ``typed``: as the user wrote them."""
    named = []
    if typed.model is not None and source.kind != "hub":
        named.append(("model", typed.model, source.path))
    if typed.model is not None and source.adapter is not None:
        named.append(("adapter", typed.model, source.adapter.path))
    if request.tokenizer is not None and Path(request.tokenizer).is_dir():
        named.append(("tokenizer", typed.tokenizer or request.tokenizer, request.tokenizer))
    if typed.draft_model is not None and draft is not None and draft.kind != "hub":
        named.append(("draft_model", typed.draft_model, draft.path))
    if typed.data is not None and data is not None and data.format != "hub" and request.mode == "train":
        named.append(("data", typed.data, data.path))
    if typed.eval is not None and held_out and held_out.file:
        named.append(("eval_data", typed.eval, held_out.file.path))
    return tuple(describe_local_source(key, name, Path(path), list_parts(key, Path(path))) for key, name, path in named)


def list_parts(key: str, path: Path) -> list[Path]:
    """The path, or what it matches where it is a pattern; of a tokenizer without the weights that lie beside it."""
    if key == "tokenizer":
        return list_tokenizer_parts(path)
    return [path] if path.exists() else list_data_files(path)


def read_sources(request: Request) -> tuple[Request, ModelSource, DataSource | None]:
    """The request with its tokenizer's full path, the model and the data."""
    use = "adapt" if request.adapts else request.mode
    if request.model is None:
        if request.data is None and request.mode == "train" and request.task != "causal-lm":
            raise UsageError(
                f"--task {request.task} needs --data: the embedded sample is plain text, for --task causal-lm",
                "give --data FILE, folder or hub id",
            )
        if request.mode == "infer" and request.task != "causal-lm":
            raise UsageError(
                f"--task {request.task} is not for the embedded sample, a model of plain text",
                "give --model FOLDER or hub id, or --task causal-lm",
            )
        model = replace(read_model(str(find_sample_file("config.json")), offline=True, mode=use), name="sample")
        data = request.data or str(find_sample_file("text.txt"))
    else:
        model = read_model(request.model, offline=request.offline, config=request.config, mode=use)
        data = request.data
    data_source = read_request_data(request, data) if data else None
    if request.config and model.kind != "hub":
        raise UsageError(f"--config {request.config} stands for a hub id's own, and --model names none", "drop one")
    tokenizer = request.tokenizer or model.tokenizer
    request = replace(request, tokenizer=read_tokenizer(tokenizer) if tokenizer else None)
    if request.tokenizer:
        revision, notes = find_tokenizer_revision(request.tokenizer, request.offline)
        model = replace(
            model,
            has_chat_template=find_tokenizer_template(request.tokenizer),
            tokenizer_revision=revision,
            notes=(*model.notes, *notes),
        )
    if data_source:
        data_source = count_lengths(data_source, model, request.tokenizer)
    return request, model, data_source


def read_request_data(request: Request, data: str) -> DataSource:
    if request.mode == "train":  # the task is as asked: whatever the data is, this is said first
        check_trained(find_task(request.task))
        check_task_options(request, request.task)
    source = read_data(
        data,
        task=request.task,
        hints=request.hints,
        skip_bad=request.skip_bad,
        config=request.data_config,
        split=request.split,
        offline=request.offline,
    )
    if request.mode == "train" and len(source.label_names) == 1:
        raise SourceError(
            f"--data {source.path}: every row has the label {source.label_names[0]!r}",
            "give data with two classes or more",
        )
    return source


def check_task_options(request: Request, task: str) -> None:
    """Refuse what is said for another task. Raises ``UsageError``."""
    of_labels = {"--label-column": request.label_column, "--labels": request.labels}
    misplaced = next((option for option, value in of_labels.items() if value is not None), None)
    if misplaced and not find_task(task).classifies:
        raise UsageError(f"{misplaced} is not used by --task {task}", "drop it, or use --task text-classification")
    sft_only = {"--format": request.format, "--loss-on": request.loss_on}
    misplaced = next((option for option, value in sft_only.items() if value and task != "sft"), None)
    if misplaced:
        raise UsageError(f"{misplaced} is not used by --task {task}", "drop it, or use --task sft")


def check_sources(request: Request, workload: Workload, source: ModelSource, data: DataSource | None) -> None:
    """Refuse what the files cannot give. Raises ``SourceError``."""
    tokenizer = source.has_tokenizer or request.tokenizer
    check_task_options(request, workload.task)
    if request.loss_on == "assistant" and workload.loss_on == "all":
        raise UsageError("--loss-on assistant: the data is texts in which nobody is said to speak", "drop it")
    if workload.mode == "infer" and request.data is not None:
        raise UsageError(f"--data {request.data} is not for --mode infer: infer.py takes a --prompt", "drop it")
    if request.labels and data and data.labels and request.labels != data.labels:
        raise UsageError(
            f"--labels {request.labels}: {data.path} has {data.labels} labels ({', '.join(data.label_names[:9])})",
            "drop it: the labels of the data are counted",
        )
    if source.has_weights and not tokenizer and not workload.task_facts.reads_media:
        why = source.tokenizer_problem or f"{source.name} has no tokenizer"
        raise SourceError(why, "give one: --tokenizer FOLDER or hub id")
    if data is None or workload.mode == "infer":
        return
    check_answers_begin(workload, data)
    if workload.task == "causal-lm":
        most = count_most_blocks(data, workload.seq_len)
        unit = f"sequence{'' if most == 1 else 's'} of {workload.seq_len} tokens"
    else:
        most = data.rows
        unit = f"example{'' if most == 1 else 's'}"
    if most is not None and most < workload.global_batch:
        raise SourceError(
            f"{data.path} holds {most} {unit}, fewer than one global batch of {workload.global_batch}: no step could be made",
            f"add data, or give --global-batch {max(most, 1)} or less"
            + ("" if request.seq_len or workload.task != "causal-lm" else f", or a --seq-len below {workload.seq_len}"),
        )


def check_answers_begin(workload: Workload, data: DataSource) -> None:
    """Raises ``SourceError`` where every example is cut before its answer begins: no token would be learned."""
    starts = data.answer_starts if workload.loss_on == "assistant" and data.lengths_exact else ()
    if starts and starts[0] >= workload.seq_len:
        raise SourceError(
            f"{data.path}: in no example does the answer begin within {workload.seq_len:,} tokens; the first of them begins behind "
            f"{starts[0]:,.0f}, the last behind {starts[-1]:,.0f}",
            "give a longer --seq-len, or shorten what is asked",
        )


def lacks_tokenizer(work: Work) -> bool:
    """Whether it trains on text, from sizes alone, and not on a tokenizer that is trained for it."""
    own, kind = work.source.has_tokenizer or work.request.tokenizer, work.workload.task_facts
    return not own and not work.source.has_weights and not kind.reads_media and kind.name != "causal-lm"


def count_most_blocks(data: DataSource, seq_len: int) -> int | None:
    """Sequences of plain text that there can be: where its tokens are an estimate, only what cannot be enough is refused."""
    if data.tokens is None:
        return None
    margin = 1.0 if data.lengths_exact else COUNTED_MARGIN if data.lengths_counted else BYTES_PER_TOKEN
    return int(data.tokens * margin) // seq_len
