"""Start vLLM's OpenAI-compatible server with the limits of config.yaml: `./serve.sh --port 8001`.

Other flags are vLLM's own.
"""

import json
import os
import sys

from api_key import read_key
from config_file import read_config
from launching import become, list_words, parse_address, report_defaults
from sources import find_source

HOST_VARIABLE = "VLLM_HOST_IP"
"""the address by which other nodes reach this one"""


def list_node_words(rank: int, first: str) -> list[str]:
    """Of one of several nodes: those behind the first compute for it, which answers."""
    return ["--node-rank", str(rank), "--master-addr", first, *(["--headless"] if rank else [])]


def main() -> None:
    config = read_config()
    serving = config["serving"]
    address, others = parse_address(serving, __doc__)
    if key := read_key():
        os.environ["VLLM_API_KEY"] = key  # not a flag: those of a process can be read by others
    words = ["serve", str(find_source(config, "model")), *address]
    if config.get("adapter"):
        words += ["--served-model-name", f"{serving['name']}-base"]
        words += ["--lora-modules", f"{serving['name']}={find_source(config, 'adapter')}"]
    else:
        words += ["--served-model-name", serving["name"]]
    flags = dict(serving["flags"])
    if config.get("draft_model"):
        draft = {"model": str(find_source(config, "draft_model")), "revision": config.get("draft_revision")}
        flags["speculative-config"] = json.dumps(json.loads(flags["speculative-config"]) | draft)
    words += list_words(flags)
    if flags.get("data-parallel-size", 1) > 1:  # several processes speak HTTP then
        words += ["--middleware", "drain.Drain"]
    if config.get("revision"):
        words += ["--revision", config["revision"]]
    if config.get("tokenizer"):
        words += ["--tokenizer", str(find_source(config, "tokenizer"))]
    own = report_defaults(config, "vLLM")
    most = (
        f"{own} tokens, of the model's generation_config.json" if own else f"the end of {flags['max-model-len']} tokens"
    )
    print(
        f"serve.sh: where a request sets no max_tokens, vLLM writes to {most}, and not {serving['max_new_tokens']} as "
        "config.yaml says: it takes no such default of it, only a limit for all "
        "(--override-generation-config '{\"max_new_tokens\": 256}')",
        file=sys.stderr,
        flush=True,
    )
    become("vllm.entrypoints.cli.main", [*words, *others])


if __name__ == "__main__":
    main()
