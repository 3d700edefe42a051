"""Text that looks like a secret is removed from the status page; all other text stays readable."""

from __future__ import annotations

import pytest

from tachograph.redact import LONGEST, REDACTED, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("ValueError: bad token=hunter2 in request", "hunter2"),
        ("password: correct-horse", "correct-horse"),
        ("{'hf_token': 'abc def'}", "abc def"),
        ('{"api_key": "k-1"}', "k-1"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
        ("train.py --wandb-api-key 0123 --lr 3", "0123"),
        ("passwd=x&user=me", "=x&"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("headers={'Authorization': 'token xyz'}", "xyz"),
        ("curl -H Bearer eyAbCdEf12", "eyAbCdEf12"),
        ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("no access for AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7"),
        ("github_pat_11ABCDEFG0123", "11ABC"),
        ("hf_abcdefghijkl", "abcdefghijkl"),
        ("sk-proj-abcdef123456", "abcdef"),
        ("xoxb-1234-5678-abcdef", "1234-5678"),
        *((f"/runs/{start}abcdEFGH1234/x", "abcdEFGH1234") for start in ("gho_", "ghu_", "ghs_", "ghr_", "glpat-")),
        *(
            (f"/runs/{start}abcdEFGH1234/x", "abcdEFGH1234")
            for start in ("AIza", "ya29.", "nvapi-", "wandb_v1_", "sk-")
        ),
        *((f"/runs/{start}ABCDEFGH1234/x", "ABCDEFGH1234") for start in ("AKIA", "ASIA", "AROA")),
        *((f"/runs/{word}=abc12/x", "abc12") for word in ("PWD", "Passphrase", "credential", "PRIVATE-KEY", "passwd")),
        ("a/" + "0123456789abcdef" * 2 + "/x", "0123456789abcdef"),
        ("blob " + "Ab3_" * 8, "Ab3_"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", "hbGci"),
        ("commit 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("blob QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODk=", "QUJDREVG"),
        ("s3://key:secret@bucket/path refused", "key:secret"),
        ("connect to https://me:pw@host:8080/x failed", "me:pw"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- !", "MIIE"),
    ],
)
def test_a_secret_is_taken_out(text: str, secret: str) -> None:
    """The secret goes, and something says that it was there."""
    shown = redact(text)
    assert secret not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/llama-7b/shard-00012-of-00512.safetensors'",
        "RuntimeError: NCCL communicator was aborted on rank 3: Watchdog caught collective operation timeout",
        "KeyError: 'model.layers.31.self_attn.q_proj.weight'",
        "ValueError: 32768 tokens are more than max_position_embeddings",
        "expected 50257 tokens, found 50304; basic block 12",
        "oom",
        "",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    """A message without a secret is shown as it is."""
    assert redact(text) == text


def test_a_long_text_costs_little() -> None:
    """No pattern goes over a text again and again, however long it is and whatever it repeats."""
    for part in ("a", "A1b", "token", "x=", "sk-", "a:b@", "aa://", "-", "--token", " token ", "eyJaaaaaaaa.", "eyJ-"):
        assert len(redact(part * 20_000)) <= LONGEST * 3
