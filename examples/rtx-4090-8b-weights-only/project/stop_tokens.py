"""Where an answer ends: a base model's own end token is often another than the one that ends a turn of its template."""

TURNS = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]


def list_stop_tokens(model, tokenizer) -> list[int] | None:
    """The model's, the tokenizer's, and what was learned to end a turn. Without the last, other turns are made up."""
    own = model.generation_config.eos_token_id
    stops = [*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id, find_end_of_turn(tokenizer)]
    return sorted({token for token in stops if token is not None}) or None


def find_end_of_turn(tokenizer) -> int | None:
    """The token behind an answer, if it is one of the tokenizer's marks: words may stand within an answer too."""
    if not tokenizer.chat_template:
        return None
    for turns in (TURNS, [*TURNS, TURNS[0]]):  # some write the end before the next turn alone (GLM's)
        try:
            text = tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception:  # a template is a program of others: it may want other turns
            return None
        _, answer, rest = text.rpartition(TURNS[1]["content"])
        tokens = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if answer else []
        if tokens:
            return tokens[0] if tokens[0] in tokenizer.get_added_vocab().values() else None
    return None
