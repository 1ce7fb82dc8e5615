"""Start SGLang's OpenAI-compatible server with the limits of config.yaml: `./serve.sh --port 8001`.

Other flags are SGLang's own.
"""

from api_key import read_key
from config_file import read_config
from launching import become, find_node, list_words, parse_address
from sources import find_source

PORT = 20000
"""at which several nodes meet"""


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
    if (nodes := serving["flags"].get("nnodes", 1)) > 1:
        rank, first = find_node(nodes)
        words += ["--node-rank", rank, "--dist-init-addr", f"{first}:{PORT}"]
    if key := read_key():
        words.append(f"--api-key={key}")  # one word: a key may begin with -
    become("sglang.launch_server", [*words, *others])


if __name__ == "__main__":
    main()
