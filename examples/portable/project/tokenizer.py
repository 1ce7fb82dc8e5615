"""A tokenizer learnt from the texts, for a model that comes without one."""

import hashlib
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from run_folder import list_checkpoints

LEARNT_FROM = "learnt-from.sha256"


def train_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, kept in the run's ``folder``: a resumed run needs the same.

    ``texts`` is read twice. Ends the process where they are others, and a checkpoint counts on the tokens of then.
    """
    learnt_from = hash_texts(texts, vocab_size)
    if folder.exists():
        path = folder / LEARNT_FROM
        if not path.exists() or path.read_text(encoding="utf-8") == learnt_from:  # an earlier version wrote none
            return PreTrainedTokenizerFast.from_pretrained(folder)
        if list_checkpoints(folder.parent):
            sys.exit(
                f"{folder} was learnt from other texts, or for another vocab_size: a checkpoint in {folder.parent} "
                "knows no other tokens.\nUndo that, or take another --output_dir."
            )
    end = "<|endoftext|>"
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=[end], initial_alphabet=ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end, pad_token=end)
    draft = folder.with_name("tokenizer.tmp")
    tokenizer.save_pretrained(draft)
    (draft / LEARNT_FROM).write_text(learnt_from, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)  # complete or not there at all
    return PreTrainedTokenizerFast.from_pretrained(folder)


def hash_texts(texts: Iterable[str], vocab_size: int) -> str:
    """Of the texts in any order: they may have been shuffled."""
    total = vocab_size
    for text in texts:
        total += int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    return f"{total % (1 << 256):064x}"
