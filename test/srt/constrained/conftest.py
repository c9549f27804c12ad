from pathlib import Path

import pytest

from sglang.srt.constrained.vocabulary import Vocabulary, load_vocabulary

MODEL = Path(__file__).resolve().parents[3] / "models" / "SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    if not (MODEL / "tokenizer.json").exists():
        pytest.fail(f"no model at {MODEL}: run make model")
    return load_vocabulary(MODEL, 49152, (2,))
