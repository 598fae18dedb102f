# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of weights is whole, or known not to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_polar.errors import DamagedWeights
from nemo_polar.rl.handover.weights_file import MANIFEST, WEIGHTS, check_safetensors, seal, verify
from tests.support.weights import weights


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def test_a_sealed_folder_verifies_and_knows_its_version(tmp_path):
    manifest = verify(weights(tmp_path / "w", 7, version=3))
    assert manifest.version == 3 and list(manifest.files) == [WEIGHTS]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.99])
def test_a_file_cut_anywhere_is_noticed_with_and_without_the_manifest(tmp_path, share: float):
    folder = weights(tmp_path / "w", 7)
    file = folder / WEIGHTS
    cut(file, int(file.stat().st_size * share))
    with pytest.raises(DamagedWeights, match="not whole"):
        verify(folder)
    with pytest.raises(DamagedWeights, match="whole"):
        check_safetensors(file)
    with pytest.raises(DamagedWeights, match="whole"):
        seal(folder)


def test_one_flipped_bit_is_noticed(tmp_path):
    folder = weights(tmp_path / "w", 7)
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-5] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(DamagedWeights, match="SHA-256"):
        verify(folder)


def test_a_folder_without_a_manifest_was_not_finished(tmp_path):
    folder = weights(tmp_path / "w", 7)
    (folder / MANIFEST).unlink()
    with pytest.raises(DamagedWeights, match="not finished"):
        verify(folder)
    (folder / MANIFEST).write_text("{")
    with pytest.raises(DamagedWeights, match="no manifest"):
        verify(folder)


def test_a_missing_file_is_named(tmp_path):
    folder = weights(tmp_path / "w", 7)
    (folder / WEIGHTS).unlink()
    with pytest.raises(DamagedWeights, match=f"{WEIGHTS} is missing"):
        verify(folder)
    with pytest.raises(DamagedWeights, match=r"no \.safetensors"):
        seal(folder)
