"""A tokenizer and models of no size, made here: nothing is downloaded."""

from __future__ import annotations

import time

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

VOCABULARY, LENGTH, FORWARD_SECONDS = 500, 64, 0.02


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer that knows the words w0, w1 and so on."""
    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number + 2 for number in range(VOCABULARY - 2)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the same as transformers wants it."""
    return PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(), pad_token="<pad>", eos_token="<eos>")


def language_model() -> GPT2LMHeadModel:
    """Return a GPT-2 of two layers whose forward takes its time."""
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    made = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, **size, **tokens))
    made.transformer.h[0].register_forward_pre_hook(lambda *_: time.sleep(FORWARD_SECONDS))
    return made
