"""Small GGUF files of one vocabulary with another way to cut texts each, and what reads them: run in the engines' environments.

`gguf_vocabularies.py write TOKENIZER FOLDER PRE...`, then `ask FOLDER` (llama.cpp's server) and `read FOLDER` (the project's convert.py,
which stands there): numbers of the tokens of TEXTS, by file, as JSON.
"""

import json
import sys
from pathlib import Path

WIDTH, MOST_WORDS = 32, 4000
TEXTS = [
    *(
        "x =   12",
        "12345 1234567",
        " 12 34",
        "  3",
        "\n\n    1. foo\n    2. bar",
        "a\t\t9",
        "ünï 👩‍💻 日本 12年",
        "\n  7",
    ),
    *(
        "| a |   1 | 22 |",
        "don't   stop DON'T I'LL we'Re",
        "²³½ ٣",
        "HelloWorld fooBar XMLHttp",
        "path/to/file.py\n\n\r\n  x",
    ),
    *(
        "The responsibilities of organizations, unfortunately.",
        "def f(x):\n\treturn x**2  # ok\n",
        "  \n  \n",
        "𝒳 ﬁ ǅ ʰ",
    ),
    *("hi <|im_start|> user", "<|im_start|>user\nhi", "  lead", "Hello\n\nhello"),
]
SPACED, UNSPACED = "llama", "llama-unspaced"
"""SentencePiece's vocabularies, which cut nothing: with a space put before a text, and without."""


def write(tokenizer: str, folder: str, *names: str) -> None:
    model = json.loads(Path(tokenizer).read_text(encoding="utf-8"))["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)[:MOST_WORDS]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    merges = [merge for merge in merges if {*merge.split(" "), merge.replace(" ", "")} <= {*words}]
    for name in names:
        write_file(Path(folder, f"{name}.gguf"), name, words, merges)


def write_file(path: Path, name: str, words: list[str], merges: list[str]) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"block_count": 1, "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": WIDTH}
    sizes |= {"attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": WIDTH}
    for key, value in sizes.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    if name in (SPACED, UNSPACED):
        pieces = ["<unk>", "<s>", "<|im_start|>", *(f"<0x{byte:02X}>" for byte in range(256))]
        kinds = [2, 3, 3] + [6] * 256
        joined = ["".join(merge.split(" ")) for merge in merges]
        known = dict.fromkeys(
            word.replace("Ġ", "▁") for word in joined if set(word) <= set(map(chr, range(33, 127))) | {"Ġ"}
        )
        single = dict.fromkeys(letter for word in known for letter in word)
        pieces += [*known, *(letter for letter in single if letter not in known)]
        kinds += [1] * (len(pieces) - len(kinds))
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * 259 + [-float(number) for number in range(len(pieces) - 259)])
        writer.add_add_space_prefix(name == SPACED)
    else:
        pieces, kinds = words, [3 if word.startswith("<|") else 1 for word in words]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        # words that no merges lead to: whether those are asked first is seen by them
        writer.add_token_merges([merge for number, merge in enumerate(merges) if number % 7])
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    square, flat = (WIDTH, WIDTH), (WIDTH,)
    tensors = {"token_embd.weight": (len(pieces), WIDTH), "output_norm.weight": flat}
    tensors |= {f"blk.0.attn_{part}.weight": square for part in ("q", "k", "v", "output")}
    tensors |= {f"blk.0.ffn_{part}.weight": square for part in ("gate", "up", "down")}
    tensors |= {f"blk.0.{part}.weight": flat for part in ("attn_norm", "ffn_norm")}
    for key, shape in tensors.items():
        writer.add_tensor(key, np.full(shape, 0.01, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ask(folder: str) -> None:
    import xllamacpp

    print(json.dumps({path.stem: ask_server(xllamacpp, path) for path in sorted(Path(folder).glob("*.gguf"))}))


def ask_server(xllamacpp, path: Path) -> list[list[int]]:
    from urllib.request import Request, urlopen

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = str(path), 512, 1
    settings.hostnames, settings.port, settings.verbosity = ["127.0.0.1"], 0, -1
    server, found = xllamacpp.Server(settings), []
    for text in TEXTS:
        body = json.dumps({"content": text, "add_special": True}).encode()
        request = Request(f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            found.append(json.load(answer)["tokens"])
    return found


def read(folder: str) -> None:
    sys.path.insert(0, folder)
    from convert import read_tokenizer
    from transformers import AutoTokenizer

    found = {}
    for path in sorted(Path(folder).glob("*.gguf")):
        read_tokenizer(path).save_pretrained(Path(folder, path.stem))
        saved = AutoTokenizer.from_pretrained(Path(folder, path.stem))
        found[path.stem] = [saved(text)["input_ids"] for text in TEXTS]
    print(json.dumps(found))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
