"""One small model for every storm."""

from pathlib import Path

import pytest

from support.tiny_folder import make_tiny_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("tiny"))
