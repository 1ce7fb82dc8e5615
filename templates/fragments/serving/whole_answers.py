"""An engine that computes whole batches, asked for one answer at a time: what streams is its own server."""

import threading
import traceback
from itertools import count

from sampling import Receive, Sampling, describe_failure


class WholeAnswers:
    """A request waits in a thread of its own until the engine is free."""

    applied = frozenset({"top_k", "min_p", "repetition_penalty"})
    draws_by_seed = True
    """Whether the seed of a request decides what is drawn for it."""

    def __init__(self) -> None:
        self.numbers = count()
        self.free = threading.Lock()

    def answer(self, prompt: list[int], sampling: Sampling) -> tuple[list[int], str]:
        """New tokens, and why there are no more."""
        raise NotImplementedError

    def submit(self, prompt: list[int], sampling: Sampling, receive: Receive) -> int:
        number = next(self.numbers)
        threading.Thread(target=self.tell, args=(prompt, sampling, receive), daemon=True).start()
        return number

    def tell(self, prompt: list[int], sampling: Sampling, receive: Receive) -> None:
        try:
            with self.free:
                tokens, finish = self.answer(prompt, sampling)
        except Exception as error:  # whatever the library raises: the log has it whole
            traceback.print_exception(error)
            tokens, finish = [], describe_failure(error)
        receive(tokens, finish)

    def cancel(self, request: int) -> None:
        """A batch that runs is not ended: its answers are not looked at."""
