"""A tiny late-interaction model, random but whole, in the folder form that PyLate writes."""

import json
import string
from pathlib import Path

import pytest

WORDS = ["a", "the", "wing", "of", "in", "slip", "##stream", "heat", "flow", "what", "is", "how"]
SKIPPED = [",", ".", "!"]


@pytest.fixture(scope="session")
def colbert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 hidden → 16 dimensions, queries of exactly 12 tokens, documents of at most 20."""
    transformers = pytest.importorskip("transformers", reason="the extra `encode` is not installed")
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny-colbert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = special + WORDS + list(string.punctuation)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), pad_token="[MASK]")
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": torch.randn(16, 32) / 32**0.5}, folder / "1_Dense" / "model.safetensors")
    identity = "torch.nn.modules.linear.Identity"
    for path, content in {
        "1_Dense/config.json": {
            "in_features": 32,
            "out_features": 16,
            "bias": False,
            "activation_function": identity,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "ColBERT",
            "query_prefix": "[Q] ",
            "document_prefix": "[D] ",
            "query_length": 12,
            "document_length": 20,
            "attend_to_expansion_tokens": False,
            "do_query_expansion": True,
            "skiplist_words": SKIPPED,
        },
    }.items():
        (folder / path).write_text(json.dumps(content), encoding="utf-8")
    return folder
