"""What a model folder declares about pooling."""

import json
from pathlib import Path

import pytest

from sglang.srt.config.pooling import DECLARED_IN, read_pooling
from sglang.srt.errors import CheckpointError


def declare(folder: Path, **ways: object) -> Path:
    path = folder / DECLARED_IN
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"word_embedding_dimension": 64, **ways}))
    return folder


def test_the_last_token_unless_the_folder_says_so(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == "last"
    assert read_pooling(declare(tmp_path, pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False)) == "last"
    assert read_pooling(declare(tmp_path, pooling_mode_lasttoken=False, pooling_mode_mean_tokens=True)) == "mean"


@pytest.mark.parametrize(
    ("ways", "named"),
    [
        ({"pooling_mode_cls_token": True}, "cls_token"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max_tokens, mean_tokens"),
        ({}, "nothing"),
        ({"pooling_mode_mean_tokens": "yes"}, "pooling_mode_mean_tokens"),
    ],
)
def test_other_ways_are_refused_by_name(tmp_path: Path, ways: dict[str, object], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_pooling(declare(tmp_path, **ways))
