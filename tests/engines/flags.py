"""Run in the environment of an engine with a server of its own: what it makes of the words that launchers start it with.

Standard input: a list of project folders; standard output: for each the words, and the fields of the engine's own arguments, or why
it refuses them."""

import importlib
import json
import sys

MODULES = ("api_key", "config_file", "generation_defaults", "launching", "prompts", "sources", "stop_tokens")
MODULES += ("template_limits", "server")
"""Each project has its own."""


def read_words(folder: str) -> list[str]:
    """Those that the launcher of a project would become."""
    sys.path.insert(0, folder)
    for name in MODULES:
        sys.modules.pop(name, None)
    taken: list[str] = []
    try:
        launcher = importlib.import_module("server")
        launcher.become = lambda module, words: taken.extend(words)
        several = launcher.read_config()["serving"]["flags"].get("nnodes", 1) > 1
        sys.argv = ["serve.sh", *(launcher.list_node_words(1, "192.0.2.1") if several else [])]
        launcher.main()
    finally:
        sys.path.remove(folder)
    return taken


class Vllm:
    """By the parser of `vllm serve`."""

    def __init__(self) -> None:
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        self.parser, self.command = FlexibleArgumentParser(), ServeSubcommand()
        self.command.subparser_init(self.parser.add_subparsers(required=True))

    def read(self, words: list[str]) -> dict:
        import vllm

        args = self.parser.parse_args(words)
        self.command.validate(args)
        asked = vllm.AsyncEngineArgs.from_cli_args(args)
        names = (word.lstrip("-").replace("-", "_") for word in words if word.startswith("--"))
        return {name: repr(getattr(asked, name, getattr(args, name, None))) for name in names}


class Sglang:
    """By the parser of `python -m sglang.launch_server`."""

    def __init__(self) -> None:
        import argparse

        from sglang.srt.server_args import ServerArgs

        self.parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(self.parser)

    def read(self, words: list[str]) -> dict:
        args = self.parser.parse_args(words)
        names = (word.lstrip("-").replace("-", "_") for word in words if word.startswith("--"))
        return {name: repr(getattr(args, name, None)) for name in names}


def main() -> None:
    folders = json.load(sys.stdin)
    engine = {"vllm": Vllm, "sglang": Sglang}[sys.argv[1]]()
    answers = []
    for folder in folders:
        words = read_words(folder)
        try:
            answers.append({"words": words, "read": engine.read(words)})
        except (Exception, SystemExit) as error:  # whatever its parser says
            answers.append({"words": words, "refused": f"{type(error).__name__}: {error}"})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
