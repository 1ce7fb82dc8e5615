"""A tokenizer learnt from the texts, for a model that comes without one."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast


def train_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer; kept in the run's folder, for a resumed run needs the same."""
    if not folder.exists():
        end = "<|endoftext|>"
        bpe = Tokenizer(BPE())
        bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
        bpe.decoder = ByteLevelDecoder()
        trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=[end], initial_alphabet=ByteLevel.alphabet())
        bpe.train_from_iterator(texts, trainer)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end, pad_token=end)
        draft = folder.with_name("tokenizer.tmp")
        tokenizer.save_pretrained(draft)
        draft.rename(folder)  # complete or not there at all
    return PreTrainedTokenizerFast.from_pretrained(folder)
