"""Encoders of text, as ``AutoModel`` of Transformers 5.23 builds them: no head, a pooler where the class has one."""

from __future__ import annotations

from functools import partial

from generator.model.blocks import Block, attention, gated_mlp, plain_mlp
from generator.model.builders import (
    Builder,
    Count,
    Family,
    LayerKinds,
    alternate_kinds,
    build_nothing,
    chain,
    decoder,
    repeat_kind,
)
from generator.model.components import Component, Scores, embedding, linear, norm, repeat_block, vector
from generator.model.settings import Settings

NAMES = "query key value attention.output.dense"
BERT_FEED_FORWARD = plain_mlp("intermediate.dense output.dense")
bert_attention = partial(attention, bias=True)


def embedding_table(name: str, rows: str, width: str = "hidden_size", more: int = 0) -> Builder:
    """An embedding of as many rows as the config's key says."""
    return lambda c: [embedding(name, c[rows] + more, c[width])] if c[rows] else []


def text_embeddings(
    *tables: Builder, width: str = "hidden_size", arrays: int = 2, name: str = "word_embeddings"
) -> Builder:
    """The vocabulary, other embeddings, and the norm of their sum."""
    return chain(
        embedding_table(name, "vocab_size", width), *tables, lambda c: norm("embeddings.norm", c[width], arrays)
    )


POSITIONS, TYPES = (
    embedding_table("position_embeddings", "max_position_embeddings"),
    embedding_table("token_type_embeddings", "type_vocab_size"),
)
BERT_WORDS = text_embeddings(POSITIONS, TYPES)


def build_pooler(c: Settings) -> list[Component]:
    return [linear("pooler.dense", c.hidden, c.hidden, True, kind="outer")]


def project_from(key: str) -> Builder:
    """From embeddings of another width to the blocks' own."""
    return lambda c: [linear("embeddings_project", c[key], c.hidden, True, kind="outer")]


def encoder(
    mixer: Block,
    ffn: Block,
    embed: Builder,
    *,
    extra: Builder = build_nothing,
    kinds: LayerKinds | None = None,
    norm_arrays: Count = 2,
    final_norm: bool = False,
) -> Family:
    """A stack that sees both sides; norms as BERT's, after the blocks (so none is last), by default."""
    return decoder(
        mixer,
        ffn,
        kinds=kinds or repeat_kind(),
        norm_arrays=norm_arrays,
        final_norm=final_norm,
        embed=embed,
        extra=extra,
        head=build_nothing,
        kind="encoder",
    )


def build_albert(c: Settings) -> list[Component]:
    """Blocks are shared by layers: there are as many as groups, though each runs many times (modeling_albert.py:
    AlbertTransformer). Parameters count once, attention as often as it runs."""
    shared = bert_attention("query key value attention.dense")(c, "full_attention")
    block = [*shared, *plain_mlp("ffn ffn_output")(c, "full_attention"), vector("norm", c.hidden, 4)]
    groups = repeat_block(block, c["num_hidden_groups"] * c["inner_group_num"])
    groups = [g._replace(layers=c.layers) if isinstance(g, Scores) else g for g in groups]
    return [*bert_embeddings("embedding_size")(c), *project_from("embedding_size")(c), *groups, *build_pooler(c)]


def bert(embed: Builder = BERT_WORDS, extra: Builder = build_pooler, names: str = NAMES) -> Family:
    return encoder(bert_attention(names), BERT_FEED_FORWARD, embed, extra=extra)


def bert_embeddings(width: str) -> Builder:
    """BERT's embeddings in a width of their own."""
    return text_embeddings(
        embedding_table("position_embeddings", "max_position_embeddings", width),
        embedding_table("token_type_embeddings", "type_vocab_size", width),
        width=width,
    )


def build_electra_projection(c: Settings) -> list[Component]:
    return project_from("embedding_size")(c) if c["embedding_size"] != c.hidden else []


def build_roformer_embeddings(c: Settings) -> list[Component]:
    """Its rotary table is a parameter, though not trained (RoFormerSinusoidalPositionalEmbedding); it has no pooler."""
    d = c.replace(embedding_size=c["embedding_size"] or c.hidden)
    components = text_embeddings(
        embedding_table("token_type_embeddings", "type_vocab_size", "embedding_size"), width="embedding_size"
    )(d)
    components.append(embedding("embed_positions", c.size("positions"), c.head_dim))
    return components + build_electra_projection(d)


def build_deberta_attention(c: Settings, kind: str) -> list[Component]:
    """One projection with biases of queries and values alone; positions projected in its relative form.

    c2p: content to position, p2c: position to content (modeling_deberta.py: DisentangledSelfAttention; pos_proj has no
    bias).
    """
    h = c.hidden
    components = [
        *attention("in_proj attention.output.dense", out_bias=True)(c, kind),
        vector("q_v_bias", h, 2),
    ]
    if c["relative_attention"]:
        forms = c["pos_att_type"] or []
        components += [linear("pos_proj", h, h)] if "c2p" in forms else []
        components += [linear("pos_q_proj", h, h, True)] if "p2c" in forms else []
    return components


def build_deberta_positions(c: Settings) -> list[Component]:
    """The table of relative positions, to either side; below 1 means as far as positions go (modeling_deberta.py)."""
    if not c["relative_attention"]:
        return []
    reach = c["max_relative_positions"]
    return [embedding("rel_embeddings", 2 * (reach if reach >= 1 else c.size("positions")), c.hidden)]


def build_deberta_embeddings(c: Settings) -> list[Component]:
    width = c["embedding_size"] or c.hidden
    components: list[Component] = [embedding("word_embeddings", c.vocab, width), vector("embeddings.norm", c.hidden, 2)]
    if c["position_biased_input"]:
        components.append(embedding("position_embeddings", c.size("positions"), width))
    if c["type_vocab_size"]:
        components.append(embedding("token_type_embeddings", c["type_vocab_size"], width))
    return components + ([linear("embed_proj", width, c.hidden, kind="outer")] if width != c.hidden else [])


def count_modernbert_norm_arrays(c: Settings) -> int:
    """Arrays per norm: the weight, and a bias where ``norm_bias`` is set."""
    return 1 + bool(c["norm_bias"])


def build_layout_tables(c: Settings) -> list[Component]:
    """x, y, height and width of a word's box, though the last two hold differences (modeling_layoutlm.py)."""
    return [embedding("position_embeddings_2d", c["max_2d_position_embeddings"], c.hidden)] * 4


FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("bert", "roberta", "camembert", "xlm-roberta", "data2vec-text"), bert()),
    "ernie": bert(
        text_embeddings(
            POSITIONS,
            TYPES,
            lambda c: embedding_table("task_type_embeddings", "task_type_vocab_size")(c) if c["use_task_id"] else [],
        )
    ),
    "layoutlm": bert(text_embeddings(POSITIONS, TYPES, build_layout_tables)),
    "distilbert": encoder(
        bert_attention("q_lin k_lin v_lin out_lin"), plain_mlp("lin1 lin2"), text_embeddings(POSITIONS, width="dim")
    ),
    "electra": bert(bert_embeddings("embedding_size"), build_electra_projection),
    "rembert": bert(bert_embeddings("input_embedding_size"), chain(project_from("input_embedding_size"), build_pooler)),
    "roformer": bert(build_roformer_embeddings, build_nothing),
    "mpnet": bert(
        text_embeddings(POSITIONS),
        chain(
            lambda c: [embedding("relative_attention_bias", c["relative_attention_num_buckets"], c.heads)], build_pooler
        ),
        names="attn.q attn.k attn.v attn.o",
    ),
    "deberta": encoder(
        build_deberta_attention, BERT_FEED_FORWARD, build_deberta_embeddings, extra=build_deberta_positions
    ),
    "albert": Family("encoder", build_albert, build_nothing, repeat_kind()),
    # rotary positions: no table of them
    "nomic_bert": encoder(attention(), gated_mlp(), text_embeddings(TYPES)),
    "eurobert": encoder(
        attention(bias="attention_bias"),
        gated_mlp(bias="mlp_bias"),
        embedding_table("embed_tokens", "vocab_size"),
        norm_arrays=1,
        final_norm=True,
    ),
    # its first layer has no attn_norm, for the embeddings' norm goes before it (modeling_modernbert.py: nn.Identity):
    # two norms per layer and a last one remain, and none is counted for the embeddings
    "modernbert": encoder(
        attention("Wqkv Wo", bias="attention_bias"),
        gated_mlp("Wi Wo", bias="mlp_bias"),
        embedding_table("tok_embeddings", "vocab_size"),
        norm_arrays=count_modernbert_norm_arrays,
        final_norm=True,
        # the first layer attends to everything (configuration_modernbert.py: i % global_attn_every_n_layers)
        kinds=alternate_kinds("global_attn_every_n_layers", default=3, at=0),
    ),
}
