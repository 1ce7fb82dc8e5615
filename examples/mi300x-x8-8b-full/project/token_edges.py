"""Where in the tokens of a text a part of it ends."""


def count_common(first, second) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


def count_before(alone: list[int], tokens: list[int], part: str, tokenizer) -> int:
    """How many of ``tokens`` write nothing but ``part``, whose own are ``alone``; a token over its edge does not.

    Not those that both begin with alone: the end of a part may be other tokens where the text goes on. Of two line
    breaks before a word GPT-2's makes two tokens, and one where nothing follows.
    """
    count = count_common(alone, tokens)
    if count < len(alone):
        while count < len(tokens) and part.startswith(write(tokens[: count + 1], tokenizer)):
            count += 1
    return count


def write(tokens: list[int], tokenizer) -> str:
    return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
