"""A chat template is a program of others: one that never ends, or fills the memory, is refused before it is used."""

import os
import resource
import signal
import sys
from pathlib import Path

CPU_SECONDS = 4
"""of a processor: published templates take thousandths of one"""
MEMORY_BYTES = 2 << 30
"""beside what the process has"""
OUT_OF_MEMORY = 3
"""How the child ends, where it is not killed."""
ENDLESS = (OUT_OF_MEMORY, -signal.SIGXCPU, -signal.SIGKILL)
"""the second and third at the limit of the processor"""
QUESTION = {"role": "user", "content": "a question"}
ANSWER = {"role": "assistant", "content": "an answer"}


def check_template(tokenizer) -> None:
    """Ends the program where the template does not end. A child tries it, for only a process can be given limits."""
    if not tokenizer.chat_template:
        return
    child = os.fork()
    if not child:
        try_template(tokenizer)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in ENDLESS:
        sys.exit(
            f"the model's chat template wrote no question and answer within {CPU_SECONDS} s of a processor and "
            f"{MEMORY_BYTES >> 30} GiB: it may never end. Take that of the model's publisher (chat_template.jinja, or "
            "chat_template in tokenizer_config.json)."
        )


def try_template(tokenizer) -> None:
    """Of the child, which ends in it. Whatever else a template raises is said where it is asked for an answer."""
    code = 0
    try:
        limit_resources()
        tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
        tokenizer.apply_chat_template([QUESTION, ANSWER, QUESTION], tokenize=False)
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def limit_resources() -> None:
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_CPU, CPU_SECONDS)
    if sys.platform == "linux":  # elsewhere the limit of the processor alone
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        lower(resource.RLIMIT_AS, mapped + MEMORY_BYTES)


def lower(limit: int, most: int) -> None:
    """Below what the user has set it stays there."""
    kept = [value for value in resource.getrlimit(limit) if value != resource.RLIM_INFINITY]
    most = min(most, *kept) if kept else most
    resource.setrlimit(limit, (most, most))
