"""What others import: types, version, the catalogue, and errors instead of empty machines."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import hwdetect


def test_every_exported_name_is_there():
    assert [name for name in hwdetect.__all__ if getattr(hwdetect, name, None) is None] == []
    assert hwdetect.__version__ and (files("hwdetect") / "py.typed").is_file()
    with pytest.raises(AttributeError, match="nonsense"):
        hwdetect.nonsense  # noqa: B018


def test_catalogue_and_instances():
    assert hwdetect.lookup("NVIDIA A100-SXM4-80GB").id == "a100-sxm-80gb"
    with pytest.raises(hwdetect.UnknownDevice, match="close to it"):
        hwdetect.lookup("h10")
    with pytest.raises(hwdetect.UnknownDevice, match="a800-pcie-40gb, a800-pcie-80gb"):
        hwdetect.lookup("A800 PCIe")
    with pytest.raises(hwdetect.UnknownDevice, match="jetson-agx-xavier-16gb"):
        hwdetect.lookup("Xavier")
    assert len(hwdetect.devices()) > 240 and isinstance(hwdetect.devices()[0], hwdetect.Device)
    priced = [i for i in hwdetect.instances() if i.price]
    assert len(priced) > 150 and all(i.price.read >= "2026" for i in priced)


def test_a_recording_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(NotADirectoryError, match="no folder"):
        hwdetect.detect(root=tmp_path / "missing")
    with pytest.raises(NotADirectoryError, match="no folder"):
        hwdetect.detect(root=str(tmp_path / "missing"))
    assert hwdetect.detect(root=Path(tmp_path)).boards == ()
