"""Makes a tokenizer folder that the other clients load: a thousand words, `tok` among them."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}"

if __name__ == "__main__":
    words = ["<unk>", "<s>", "</s>", "tok", *(f"w{n}" for n in range(1020))]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>",
        model_max_length=65536, chat_template=CHAT,
    )  # fmt: skip
    outer.save_pretrained(Path(sys.argv[1]))
