"""Encoders of text, as ``AutoModel`` of Transformers 5.23 builds them: no head, a pooler where the class has one."""

from __future__ import annotations

from functools import partial

from generator.model.blocks import Block, attention, gated, plain
from generator.model.parts import Item, Scores, embedding, linear, norm, repeated, vector
from generator.model.settings import Settings
from generator.model.stacks import Kinds, Maker, Number, Row, alternating, decoder, every, nothing, once

NAMES = "query key value attention.output.dense"
BERT_FEED_FORWARD = plain("intermediate.dense output.dense")
bert_attention = partial(attention, bias=True, causal=False)


def table(name: str, rows: str, width: str = "hidden_size", more: int = 0) -> Maker:
    """An embedding of as many rows as the config's key says."""
    return lambda c: [embedding(name, c[rows] + more, c[width])] if c[rows] else []


def words(*tables: Maker, width: str = "hidden_size", arrays: int = 2, name: str = "word_embeddings") -> Maker:
    """The vocabulary, other embeddings, and the norm of their sum."""
    return once(table(name, "vocab_size", width), *tables, lambda c: norm("embeddings.norm", c[width], arrays))


POSITIONS, TYPES = (
    table("position_embeddings", "max_position_embeddings"),
    table("token_type_embeddings", "type_vocab_size"),
)
BERT_WORDS = words(POSITIONS, TYPES)


def pooler(c: Settings) -> list[Item]:
    return [linear("pooler.dense", c.hidden, c.hidden, True, kind="outer")]


def projected(key: str) -> Maker:
    """From embeddings of another width to the blocks' own."""
    return lambda c: [linear("embeddings_project", c[key], c.hidden, True, kind="outer")]


def encoder(
    mixer: Block,
    ffn: Block,
    embed: Maker,
    *,
    extra: Maker = nothing,
    kinds: Kinds | None = None,
    norm_arrays: Number = 2,
    final_norm: bool = False,
) -> Row:
    """A stack that sees both sides; norms as BERT's, after the blocks, unless said otherwise."""
    return decoder(
        mixer,
        ffn,
        kinds=kinds or every(),
        norm_arrays=norm_arrays,
        final_norm=final_norm,
        embed=embed,
        extra=extra,
        head=nothing,
        kind="encoder",
    )


def albert(c: Settings) -> list[Item]:
    """Blocks are shared by layers: there are as many as groups, though each runs many times."""
    shared = bert_attention("query key value attention.dense")(c, "full_attention")
    block = [*shared, *plain("ffn ffn_output")(c, "full_attention"), vector("norm", c.hidden, 4)]
    groups = repeated(block, c["num_hidden_groups"] * c["inner_group_num"])
    groups = [item._replace(layers=c.layers) if isinstance(item, Scores) else item for item in groups]
    return [*narrow("embedding_size")(c), *projected("embedding_size")(c), *groups, *pooler(c)]


def bert(embed: Maker = BERT_WORDS, extra: Maker = pooler, names: str = NAMES) -> Row:
    return encoder(bert_attention(names), BERT_FEED_FORWARD, embed, extra=extra)


def narrow(width: str) -> Maker:
    """BERT's embeddings in a width of their own."""
    return words(
        table("position_embeddings", "max_position_embeddings", width),
        table("token_type_embeddings", "type_vocab_size", width),
        width=width,
    )


def electra_extra(c: Settings) -> list[Item]:
    return projected("embedding_size")(c) if c["embedding_size"] != c.hidden else []


def roformer_words(c: Settings) -> list[Item]:
    d = c.but(embedding_size=c["embedding_size"] or c.hidden)
    made = words(table("token_type_embeddings", "type_vocab_size", "embedding_size"), width="embedding_size")(d)
    made.append(embedding("embed_positions", c.size("positions"), c.head_dim))
    return made + electra_extra(d)


def deberta_attention(c: Settings, kind: str) -> list[Item]:
    """One projection with biases of queries and values alone; positions projected in its relative form."""
    h = c.hidden
    made = [
        *attention("in_proj attention.output.dense", out_bias=True, causal=False)(c, kind),
        vector("q_v_bias", h, 2),
    ]
    if c["relative_attention"]:
        asked = c["pos_att_type"] or []
        made += [linear("pos_proj", h, h)] if "c2p" in asked else []
        made += [linear("pos_q_proj", h, h, True)] if "p2c" in asked else []
    return made


def deberta_positions(c: Settings) -> list[Item]:
    """The table of relative positions."""
    if not c["relative_attention"]:
        return []
    told = c["max_relative_positions"]
    return [embedding("rel_embeddings", 2 * (told if told >= 1 else c.size("positions")), c.hidden)]


def deberta_words(c: Settings) -> list[Item]:
    width = c["embedding_size"] or c.hidden
    made: list[Item] = [embedding("word_embeddings", c.vocab, width), vector("embeddings.norm", c.hidden, 2)]
    if c["position_biased_input"]:
        made.append(embedding("position_embeddings", c.size("positions"), width))
    if c["type_vocab_size"]:
        made.append(embedding("token_type_embeddings", c["type_vocab_size"], width))
    return made + ([linear("embed_proj", width, c.hidden, kind="outer")] if width != c.hidden else [])


def modern_norms(c: Settings) -> int:
    """Arrays a norm: a bias where the config says so."""
    return 1 + bool(c["norm_bias"])


def layout_tables(c: Settings) -> list[Item]:
    return [embedding("position_embeddings_2d", c["max_2d_position_embeddings"], c.hidden)] * 4


ROWS: dict[str, Row] = {
    **dict.fromkeys(("bert", "roberta", "camembert", "xlm-roberta", "data2vec-text"), bert()),
    "ernie": bert(
        words(
            POSITIONS,
            TYPES,
            lambda c: table("task_type_embeddings", "task_type_vocab_size")(c) if c["use_task_id"] else [],
        )
    ),
    "layoutlm": bert(words(POSITIONS, TYPES, layout_tables)),
    "distilbert": encoder(
        bert_attention("q_lin k_lin v_lin out_lin"), plain("lin1 lin2"), words(POSITIONS, width="dim")
    ),
    "electra": bert(narrow("embedding_size"), electra_extra),
    "rembert": bert(narrow("input_embedding_size"), once(projected("input_embedding_size"), pooler)),
    "roformer": bert(roformer_words, nothing),
    "mpnet": bert(
        words(POSITIONS),
        once(lambda c: [embedding("relative_attention_bias", c["relative_attention_num_buckets"], c.heads)], pooler),
        names="attn.q attn.k attn.v attn.o",
    ),
    "deberta": encoder(deberta_attention, BERT_FEED_FORWARD, deberta_words, extra=deberta_positions),
    "albert": Row("encoder", albert, nothing, every()),
    "nomic_bert": encoder(attention(causal=False), gated(), words(TYPES)),
    "eurobert": encoder(
        attention(bias="attention_bias", causal=False),
        gated(bias="mlp_bias"),
        table("embed_tokens", "vocab_size"),
        norm_arrays=1,
        final_norm=True,
    ),
    "modernbert": encoder(
        attention("Wqkv Wo", bias="attention_bias", causal=False),
        gated("Wi Wo", bias="mlp_bias"),
        table("tok_embeddings", "vocab_size"),
        norm_arrays=modern_norms,
        final_norm=True,
        kinds=alternating("global_attn_every_n_layers", usual=3),
    ),
}
