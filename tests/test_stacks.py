import pytest

from generator.case import stacks
from generator.errors import UsageError


@pytest.mark.parametrize(
    ("capability", "driver", "build"),
    [
        ("9.0", None, "cu130"),
        ("9.0", "580.95.05", "cu130"),
        ("8.9", "550.54.15", "cu126"),
        ("7.5", "535.104.05", "cu126"),
        ("7.0", "580.95.05", "cu126"),
        ("6.1", None, "cu126"),
        ("10.0", "580.95.05", "cu130"),
    ],
)
def test_the_newest_build_that_board_and_driver_can_run(capability, driver, build):
    assert stacks.choose_cuda_build("train", capability, driver, "the board") == build


@pytest.mark.parametrize(
    ("capability", "driver", "words"),
    [
        ("8.0", "470.82.01", "install driver 525.60.13"),
        ("10.0", "550.54.15", "install driver 580"),
        ("3.5", None, "no build of torch"),
    ],
)
def test_a_driver_or_board_that_nothing_runs_on_is_said(capability, driver, words):
    with pytest.raises(UsageError, match="torch") as refused:
        stacks.choose_cuda_build("train", capability, driver, "the board")
    assert words in str(refused.value)


def test_floors_without_known_loading_faults():
    stack = stacks.load_stack("train", "cpu")
    assert tuple(map(int, stack.version("torch").split("."))) >= (2, 10)
    assert tuple(map(int, stack.version("transformers").split("."))) >= (5, 3)


def test_why_missing_names_the_reason():
    stack = stacks.load_stack("train", "cpu")
    assert stack.why_missing("peft") is None
    assert "0.17.2" in stack.why_missing("kernels")
    assert "not part of the tested stack" in stack.why_missing("apex")
