from __future__ import annotations

import pytest

from primus_core.secrets import is_secret_key, is_secret_variable, mask_assignments, mask_words, scrub


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "hf_token"])
def test_secret_variables(name):
    assert is_secret_variable(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HOME", "NCCL_DEBUG"])
def test_other_variables(name):
    assert not is_secret_variable(name)


@pytest.mark.parametrize("name", ["api_key", "tracker.api-key", "hf_token", "password", "wandb.secret", "apikey"])
def test_secret_keys(name):
    assert is_secret_key(name)


@pytest.mark.parametrize("name", ["tokenizer_model", "eos_token", "num_tokens", "key_dim", "key", "token", "sort_key"])
def test_other_keys(name):
    assert not is_secret_key(name)


def test_scrubbing_takes_the_longest_first_and_leaves_short_ones():
    assert scrub("sekret-long sekret a1", ["sekret", "sekret-long", "a1"]) == "*** *** a1"


def test_words():
    words = (
        "--api_key",
        "x",
        "--api_key=x",
        "api_key=x",
        "--env",
        "HF_TOKEN=x",
        "--env=HF_TOKEN=x",
        "lr=1",
        "--a.password",
        "--b",
    )
    assert mask_words(words) == (
        "--api_key", "***", "--api_key=***", "api_key=***", "--env", "HF_TOKEN=***", "--env=HF_TOKEN=***", "lr=1",
        "--a.password", "--b",
    )  # fmt: skip


def test_assignments_in_a_diff():
    text = """\
-      api_key: abc
+      api_key: "abc def"  # why
+export HF_TOKEN=abc
+  "password": "abc",
+      learning_rate: 1e-4
+key = names[0]
"""
    masked = mask_assignments(text)
    assert "abc" not in masked
    assert "# why" in masked
    assert "learning_rate: 1e-4" in masked
    assert "key = names[0]" in masked
