"""A tiny Llama, a tokenizer trained on generated text, and that text as a data set, all in the folder that is named.

python tiny_llama.py FOLDER [LAYERS HIDDEN]
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out, rng = Path(sys.argv[1]), random.Random(0)
layers, hidden = map(int, sys.argv[2:] or (2, 64))
words = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(2, 7))) for _ in range(300)]
texts = [" ".join(rng.choice(words) for _ in range(400)) for _ in range(400)]
(out / "data").mkdir()
(out / "data" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
tokenizer = ByteLevelBPETokenizer()
tokenizer.train_from_iterator(texts, vocab_size=512, special_tokens=["<s>", "</s>", "<pad>"])
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
)
fast.save_pretrained(out / "model")
shape = LlamaConfig(
    vocab_size=512,
    hidden_size=hidden,
    intermediate_size=hidden * 43 // 16,
    num_hidden_layers=layers,
    num_attention_heads=4,
    max_position_embeddings=512,
)
LlamaForCausalLM(shape).save_pretrained(out / "model")
