"""The key of a server: what is in the environment, as a header of HTTP can have it."""

from __future__ import annotations

import pytest


@pytest.fixture
def read(load):
    return load("serving/api_key", "api_key").read_key


@pytest.mark.parametrize(
    ("value", "key"), [("secret", "secret"), ("secret\n", "secret"), (" a b\r\n", "a b"), ("", None), (None, None)]
)
def test_a_key_is_what_a_header_holds(read, monkeypatch, value, key):
    """A file ends with a line break, and so does a secret of Kubernetes that is made of one: nobody could send it."""
    monkeypatch.delenv("API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("API_KEY", value)
    assert read() == key


@pytest.mark.parametrize("value", [" ", "\n", "clé", "a\nb", "a\x07", "\udcff"])
def test_a_key_that_nobody_can_send_is_refused(read, monkeypatch, value):
    """A blank one is not none: the server would be open."""
    monkeypatch.setenv("API_KEY", value)
    with pytest.raises(SystemExit, match="API_KEY"):
        read()
