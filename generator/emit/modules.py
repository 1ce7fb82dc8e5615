"""Which plain Python files a project takes: its modules, by the leaf of templates/fragments that each is copied from."""

from __future__ import annotations

from generator.case.layout import Layout
from generator.case.tasks import find_task
from generator.case.workload import computes_rows
from generator.emit.compilers import NVCC
from generator.emit.plan_document import ABSENT, CompilerRecord, ParallelRecord, ProjectPart, ServerRecord
from generator.techniques.edits import Edits
from generator.techniques.engines import Engine

WRAPPINGS = {
    "DistributedDataParallel": "wrapping/ddp",
    "FSDPModule": "wrapping/fsdp",
    "DeepSpeedEngine": "wrapping/deepspeed",
    "loop": "wrapping/loop",
}
"""The leaf that looks at a model, by the class that wraps it."""

STATES = {"": "model_states/plain", "DeepSpeedEngine": "model_states/deepspeed"}
"""The leaf that lists weights, gradients and optimizer states, by the class that holds them."""
WITH_ALL_WEIGHTS = ("DistributedDataParallel",)
"""Wrappers under which every process has all weights: one alone can answer a prompt while the others wait."""


ALWAYS = (
    *("arguments", "checkpoints", "evaluation", "final_model", "finished_runs", "first_example", "first_step"),
    *("model_card", "parts", "progress", "run_folder", "run_identity", "run_report", "seals", "stopping"),
    *("token_count",),
)
"""The leaves of every training."""
SEARCH = ("search", "search_report", "search_trials", "search_values")
"""Those that try other values of what is the user's, where one node trains."""
LOOP = ("background_save", "divided_states", "loop", "loop_arguments", "loop_states", "room", "row_order")
"""Those of a training with a loop of its own."""
NAMES_CLASSES = ("parquet", "arrow", "hub")
"""formats of data in which labels may be numbers that have names"""
COMPRESSIBLE = ("txt", "jsonl", "json", "csv")
"""Formats of files that may be compressed as they are; parquet and arrow compress inside."""
SERVING = (
    *(
        "api_key",
        "assembly",
        "batch",
        "batch_input",
        "chat",
        "end_on_signal",
        "generation_defaults",
        "infer",
        "own_server",
    ),
    *("progress_line", "prompts", "sampling", "shards"),
    *("bench", "bench_baseline", "bench_child", "bench_figures", "bench_machine", "bench_plot", "bench_report"),
    *("bench_requests", "bench_server", "bench_texts", "weights_identity"),
)
"""The leaves of templates/fragments/serving that every project has which serves a model that writes."""
BATCH = ("assembly", "batch", "batch_input", "end_on_signal", "progress_line", "shards", "weights_identity")
"""The leaves of templates/fragments/serving that are batch.py, but for what it computes of a row."""
OF_ROWS = ("fields", "masking", "open_data", "seals")
"""Leaves that it shares with trainings."""
SERVER = (
    "http_call",
    "openai_answers",
    "openai_requests",
    "server",
    "server_metrics",
    "service",
)
"""Those that are the server in front of an engine which has none of its own."""
CONVERSION = ("compare", "compare_reference", "converted_weights")
"""Those that make an engine's weights, and compare what it answers with them."""
COPIES = ("gguf_file",)
"""Leaves of conversions that take the model's file as it is: the engine refuses one that is not whole."""
BESIDE = ("fields", "masking", "open_data", "seals", "stop_tokens", "template_limits")
"""Leaves that they share with trainings."""
ROWS = ("csv", "jsonl", "txt")
"""Formats of files that batch.py reads row by row, beside Parquet."""
LABELS = {"messages": "labels/messages", "prompt_completion": "labels/texts", "text": "labels/texts"}
"""The leaf that tokenizes examples and says which tokens are learned from, by their form."""


def choose_modules(
    project: ProjectPart,
    edits: Edits,
    parallel: ParallelRecord | None,
    compilers: CompilerRecord,
    server: ServerRecord | None,
    engine: Engine | None,
    asks_kernel: bool,
    layout: Layout,
) -> dict[str, str]:
    """Module name to leaf, without ``.py``. ``parallel`` is what plan.json says of several processes, ``engine`` that of the ``server``.
    ``asks_kernel``: whether the first step asks PyTorch which kernel of attention it would take. ``layout``: of a server."""
    modules = {
        "config_file": "config_file",
        "machine": f"machine/{project.guard}",
        "infer_report": "infer_report",
        "lock": "lock",
        "quiet_imports": "quiet_imports",
        "sources": "sources",
        "terminal": "terminal",
    }
    if project.contained:
        modules["lock_image"] = "lock_image"
    if compilers.train or compilers.infer:
        modules["compiler"] = "compiler"
    if NVCC in compilers.train:
        modules["nvcc"] = "nvcc"
    if project.mode == "train" or project.hub:
        modules["masking"] = "masking"
    if project.sft_format == "messages" and not project.chat_template:
        modules["chat_template"] = "chat_template"
    if server is not None and engine is not None:
        modules |= list_serving_modules(server, engine, layout)
    if computes_rows(project.mode, project.task):
        modules |= list_row_modules(project.task)
    if "infer" in modules and project.device == "portable":  # its infer.py is the same for every machine
        modules["machine"] = "machine/unplanned"
    if server is None or "slots" in modules:  # else the engine reads the model's files, and refuses what is not whole
        modules["loaded_weights"] = "loaded_weights"
    if project.mode != "train":
        served = [line.split()[1] for line in edits.infer_imports]
        modules |= {name: name for name in edits.fragments if name in served}
        return dict(sorted(modules.items()))
    modules |= list_training_modules(project, edits, parallel)
    if asks_kernel:
        modules["attention_kernel"] = "attention_kernel"
    return dict(sorted(modules.items()))


def list_training_modules(project: ProjectPart, edits: Edits, parallel: ParallelRecord | None) -> dict[str, str]:
    """Of a project that trains: what every training has, what its work and its processes need."""
    modules = {name: name for name in (*ALWAYS, *edits.fragments)}
    has_all_weights = parallel is None or parallel.expected.wrapper in WITH_ALL_WEIGHTS
    if has_all_weights and not project.adapter:  # others read what they save under the model's own names
        modules["saved_weights"] = "saved_weights"
    if "router_loss" in modules:
        by_loop = parallel is not None and parallel.loop is not ABSENT
        modules["router_loss"] = f"router_loss/{'loop' if by_loop else 'sft' if project.task == 'sft' else 'trainer'}"
    if parallel is None or parallel.nodes == 1:
        modules |= {name: name for name in SEARCH}
    if project.adapter:
        modules |= {"merge": "merge", "stop_tokens": "stop_tokens"}
    if project.task == "sft" and has_all_weights:
        modules["answers"] = "answers"
    if project.train_tokenizer:
        modules["tokenizer"] = "tokenizer"
    wrapper = parallel.expected.wrapper if parallel else ""
    modules["model_states"] = STATES.get(wrapper, STATES[""])
    modules |= list_data_modules(project)
    return modules | (list_parallel_modules(parallel) if parallel else {})


def list_data_modules(project: ProjectPart) -> dict[str, str]:
    """What reads a training's data, makes examples and labels of its rows, and measures what is learned of them."""
    modules = {}
    if find_task(project.task).classifies:
        modules |= {"class_loss": "class_loss", "class_metrics": "class_metrics"}
        if project.data_format in NAMES_CLASSES:
            modules["class_names"] = "class_names"
    else:
        modules["answer_length"] = "answer_length"
    if project.data_format != "hub":
        modules["rows"] = f"rows/{project.data_format}"
    if project.data_format in COMPRESSIBLE:
        modules["open_data"] = "open_data"
    if project.example_leaf is not None:
        modules |= {"examples": f"examples/{project.example_leaf}", "fields": "fields"}
    if project.task == "sft":
        labels = LABELS[project.sft_format or "messages"]
        if labels == LABELS["messages"]:
            modules["template_limits"] = "template_limits"
        modules |= {"labels": labels, "token_edges": "token_edges", "stop_tokens": "stop_tokens"}
    return modules


def list_parallel_modules(parallel: ParallelRecord) -> dict[str, str]:
    """Of a training by several processes."""
    modules = {name: name for name in ("heartbeat", "liveness", "standstill", "launcher_summary", "parallel")}
    modules["wrapping"] = WRAPPINGS[parallel.expected.wrapper]
    if parallel.world_size > 1:
        modules["preflight"] = "preflight"
    if parallel.nodes > 1:
        modules |= {"addresses": "addresses", "meeting": "meeting"}
    if parallel.deepspeed:
        modules["abandoned_builds"] = "abandoned_builds"
    if parallel.loop is ABSENT:
        return modules
    modules |= {name: name for name in LOOP} | {"division": parallel.loop.division}
    if parallel.loop.attention is not None:
        modules["sequence_attention"] = parallel.loop.attention
    if parallel.loop.tokens is not None:
        modules["token_parts"] = parallel.loop.tokens
    if parallel.loop.vocabulary is not None:
        modules["vocabulary_parts"] = parallel.loop.vocabulary
    return modules


def list_row_modules(task: str) -> dict[str, str]:
    """Of a project that computes rows by Transformers itself: batch.py, and infer.py for one."""
    modules = {name: f"serving/{name}" for name in BATCH} | {name: name for name in OF_ROWS}
    modules |= {"infer": "serving/infer_row"} | dict(find_task(task).row_leaves)
    return modules | {f"rows_{kind}": f"rows/{kind}" for kind in ROWS}


def list_serving_modules(server: ServerRecord, engine: Engine, layout: Layout) -> dict[str, str]:
    """Of a project that serves: its engine, what is in front of it, and what asks it."""
    served = [*SERVING, *engine.imports, *([] if server.command else SERVER)]
    modules = {name: f"serving/{name}" for name in served} | {name: name for name in BESIDE}
    modules |= {"engine": f"engines/{server.leaf}", "batch_work": "serving/batch_work/answers"}
    modules |= {f"rows_{kind}": f"rows/{kind}" for kind in ROWS}
    if "slots" in modules:
        modules["proposals"] = f"serving/proposals/{server.proposals}"
    if engine.starts_processes:
        modules["end_on_signal"] = "serving/end_with_children"
    if server.command:
        modules |= {"server": f"serving/launch_{server.leaf}", "launching": "serving/launching"}
    if layout.replicate > 1:
        modules |= {name: f"serving/{name}" for name in engine.of_copies}
    if layout.nodes > 1:
        modules |= {"node": "serving/node", "addresses": "addresses"}
    if server.conversion:
        modules |= {name: f"serving/{name}" for name in CONVERSION}
        modules["convert"] = f"conversions/{server.conversion.leaf}"
        if server.conversion.leaf not in COPIES:
            modules["loaded_weights"] = "loaded_weights"
    return modules
