"""Start SGLang's OpenAI-compatible server with the limits of config.yaml: `./serve.sh --port 8001`.

Other flags are SGLang's own.
"""

import sys

from api_key import read_key
from config_file import read_config
from launching import become, list_words, parse_address, report_defaults
from sources import find_source

PORT = 20000
"""at which the engines of several nodes meet"""
HOST_VARIABLE = "SGLANG_HOST_IP"
"""the address by which other nodes reach this one"""


def list_node_words(rank: int, first: str) -> list[str]:
    """Of one of several nodes: the first answers."""
    return ["--node-rank", str(rank), "--dist-init-addr", f"{first}:{PORT}"]


def main() -> None:
    config = read_config()
    serving = config["serving"]
    address, others = parse_address(serving, __doc__)
    words = ["--model-path", str(find_source(config, "model")), "--served-model-name", serving["name"], *address]
    words += list_words(serving["flags"])
    if config.get("revision"):
        words += ["--revision", config["revision"]]
    if config.get("tokenizer"):
        words += ["--tokenizer-path", str(find_source(config, "tokenizer"))]
    if key := read_key():
        words.append(f"--api-key={key}")  # one word: a key may begin with -
    report_defaults(config, "SGLang")
    print(
        "serve.sh: where a request sets no max_tokens, SGLang writes a chat to the end of "
        f"{serving['flags']['context-length']} tokens, and 16 of a text, and not {serving['max_new_tokens']} as "
        "config.yaml says: it has no such default, only a limit for all (SGLANG_MAX_NEW_TOKENS_LIMIT)",
        file=sys.stderr,
        flush=True,
    )
    become("sglang.launch_server", [*words, *others])


if __name__ == "__main__":
    main()
