"""Talk to the model: `python chat.py`, or `echo "a question" | python chat.py`. Starts ./serve.sh if none answers."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import io
import json
import readline  # noqa: F401  lines can be edited, and called back
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx

from api_key import read_key
from config_file import read_config
from own_server import run_server
from terminal import escape_control, parse_flags

HERE = Path(__file__).resolve().parent
HELP = "/reset forgets what was said, /quit (or Ctrl-D) ends; Ctrl-C stops an answer"
LINE_BYTES = 1 << 20
"""Of an event: longer ones are no token's."""
START_SECONDS = 1800
"""A large model on a slow disk, or one that is compiled first, takes long to start."""


class ServerError(Exception):
    """What the server said, or that it said nothing."""


class Conversation:
    """The messages so far, with a server that has none of them."""

    def __init__(self, client: httpx.Client, model: str, options: dict, system: str | None) -> None:
        self.client, self.model, self.options = client, model, options
        self.beginning = [{"role": "system", "content": system}] if system else []
        self.forget()

    def forget(self) -> None:
        self.messages = list(self.beginning)

    def ask(self, text: str) -> None:
        """The answer, as it comes. One that was stopped is kept as far as it came; a question that failed is not."""
        answer = ""
        try:
            for piece in self.stream([*self.messages, {"role": "user", "content": text}]):
                answer += piece
                print(escape_control(piece), end="", flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print(" [stopped]", end="")
        except httpx.HTTPError as error:
            raise ServerError(f"{type(error).__name__}: {error}") from error
        finally:
            print(flush=True)
            if answer:
                turns = ("user", text), ("assistant", answer)
                self.messages += [{"role": role, "content": content} for role, content in turns]

    def stream(self, messages: list[dict]) -> Iterator[str]:
        body = {"model": self.model, "messages": messages, "stream": True, **self.options}
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ServerError(describe_refusal(response))
            for data in read_events(response):
                try:
                    event = json.loads(data)
                    if "error" in event:
                        raise ServerError(str(event["error"]["message"]))
                    pieces = [choice["delta"].get("content") or "" for choice in event["choices"]]
                    yield "".join(pieces)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ServerError(f"not what a chat server sends: {data[:80]!r}") from error


def read_events(response: httpx.Response) -> Iterator[bytes]:
    """What stands behind each ``data:`` of a stream."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield data
        if len(rest) > LINE_BYTES:
            raise ServerError(f"the server sent a line of more than {LINE_BYTES:,} bytes")


def describe_refusal(response: httpx.Response) -> str:
    try:
        return f"{response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.text[:200]}"


def talk(conversation: Conversation, piped: str | None) -> int:
    """Line by line from a terminal, all at once what was ``piped``. The exit code."""
    if piped is not None:
        try:
            conversation.ask(piped)
        except ServerError as error:
            print(escape_control(str(error)), file=sys.stderr)
            return 1
        return 0
    print(HELP)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:  # nothing is being answered: the line is dropped
            print()
            continue
        if text == "/quit":
            return 0
        if text == "/reset":
            conversation.forget()
            print("forgotten")
        elif text.startswith("/"):
            print(HELP)
        elif text:
            try:
                conversation.ask(text)
            except ServerError as error:
                print(escape_control(str(error)))


def read_piped() -> str:
    """Before a server is started for it."""
    text = sys.stdin.read()
    if not text.strip():
        sys.exit("nothing was asked: standard input is empty, and no terminal. Pipe a question in")
    return text


def is_answered(url: str) -> bool:
    """Whether a server listens there, loaded or not."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code in (200, 503)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def wait_while_loading(url: str) -> None:
    """For a server that somebody has just started."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/health", timeout=5).json() != {"status": "loading"}:
                return
        except (httpx.HTTPError, ValueError):  # find_model says what is wrong
            return
        time.sleep(0.2)


@contextmanager
def start_server() -> Generator[str]:
    """One of this project, for as long as this program runs. Its log is shown where it fails."""
    with (
        tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as log,
        run_server(HERE, log) as (url, process),
    ):
        wait_until_ready(url, process, log)
        yield url


def wait_until_ready(url: str, process: subprocess.Popen, log) -> None:
    print("starting ./serve.sh …", file=sys.stderr, flush=True)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"serve.sh ended with {process.returncode}:\n{escape_control(log.read()[-4000:])}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    sys.exit(f"serve.sh is not ready after {START_SECONDS} s")


def find_model(client: httpx.Client, name: str) -> str:
    """``name``, if the server has it, which may list the model beneath an adapter too; else its first."""
    try:
        response = client.get("/v1/models", timeout=60)
        if response.status_code != 200:
            sys.exit(escape_control(describe_refusal(response)))
        served = [str(model["id"]) for model in response.json()["data"]]
        return name if name in served else served[0]
    except httpx.HTTPError as error:
        sys.exit(f"{client.base_url} does not say what it serves: {type(error).__name__}: {error}")
    except (ValueError, KeyError, TypeError, IndexError):
        sys.exit(f"{client.base_url} is no server of this kind: what it serves is not said at /v1/models")


def parse_object(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no object")
    return value


def main() -> None:
    serving = read_config()["serving"]
    parser = argparse.ArgumentParser(description=__doc__)
    own = f"http://127.0.0.1:{serving['port']}"
    parser.add_argument("--url", help=f"of a server that runs (default: {own}, or ./serve.sh)")
    parser.add_argument("--system", help="what the model is told before the first question")
    parser.add_argument("--temperature", type=float, help="0: always the likeliest token (default: the server's)")
    parser.add_argument("--max_new_tokens", type=int, help="of an answer, at most (default: the server's)")
    parser.add_argument(
        "--chat_template_kwargs",
        type=parse_object,
        metavar="JSON",
        help="""what the model's chat template is given, such as '{"enable_thinking": false}'""",
    )
    args = parse_flags(parser)
    given = {"temperature": args.temperature, "max_tokens": args.max_new_tokens}
    given["chat_template_kwargs"] = args.chat_template_kwargs
    options = {name: value for name, value in given.items() if value is not None}
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # what the terminal cannot show or say is no reason to end
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    piped = None if sys.stdin.isatty() else read_piped()
    key = read_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = (args.url or own).rstrip("/").removesuffix("/v1")
    answered = is_answered(url)
    if args.url and not answered:
        sys.exit(f"no server answers at {escape_control(args.url)}: start one there, or leave --url out")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))  # not without the server that it started
    if answered:
        wait_while_loading(url)
    patience = httpx.Timeout(10, read=None)
    with (
        nullcontext(url) if answered else start_server() as url,
        httpx.Client(base_url=url, headers=headers, timeout=patience) as client,
    ):
        code = talk(Conversation(client, find_model(client, serving["name"]), options, args.system), piped)
    sys.exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the imports are over
    try:
        main()
    except KeyboardInterrupt:  # by now the server has ended
        print(file=sys.stderr)
        sys.exit(130)
