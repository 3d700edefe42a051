"""Text that looks like a secret is removed from all that leaves a rank; all other text stays readable."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Iterator

import pytest
from detect_secrets.plugins import (
    artifactory,
    aws,
    azure_storage_key,
    basic_auth,
    discord,
    github_token,
    gitlab_token,
    jwt,
    mailchimp,
    openai,
    pypi_token,
    sendgrid,
    square_oauth,
    stripe,
    telegram_token,
    twilio,
)
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.keyword import KeywordDetector
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tachograph.text.redact import LONGEST, REDACTED, redact, redact_lines
from tests.every import every

SECRETS: tuple[tuple[str, ...], ...] = (
    # A text, and what must not be left of it.
    ("ValueError: bad token=hunter2 in request", "hunter2"),
    ("password: correct horse battery staple", "correct", "horse", "battery", "staple"),
    ("{'hf_token': 'abc def'}", "abc def"),
    ("password is hunter2 x", "hunter2", " x"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr", "bPx"),
    ("creds wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY refused", "wJalr", "bPx"),
    ("DefaultEndpointsProtocol=https;AccountKey=AAAABBBBCCCC/DDDD+EE==;EndpointSuffix=core", "AAAA", "DDDD"),
    ("https://a.blob.core.windows.net/c?sv=2022&sp=r&sig=Ab%2Bcd%3D", "Ab%2B"),
    ("POST https://hooks.slack.com/services/T0AA/B0BB/xYz123 failed", "T0AA", "xYz123"),
    ("https://discord.com/api/webhooks/1234/aBc-dEf", "aBc-dEf"),
    ("https://acme.webhook.office.com/webhookb2/abc@def/IncomingWebhook/ghi/jkl", "abc@def", "ghi"),
    ("https://chat.example.org/hooks/x8kq3fjd", "x8kq3fjd"),
    ("https://api.telegram.org/bot123456:ABC-DEF/sendMessage", "ABC-DEF"),
    ("login failed for https://alice:p/ss@db", "p/ss"),
    ("login failed for https://alice:p@ss@db/x", "p@ss", "ss@db"),
    ("postgresql+psycopg2://me:a/b@c:d@host:5432/db", "a/b", "c:d"),
    ("redis://:hunter2@cache:6379/0", "hunter2"),
    ("mysql://alice:p#x?y@db/z", "p#x"),
    ("alice:hunter2@db.example refused", "hunter2"),
    ("PASS=hunter2 python train.py", "hunter2"),
    ("DB_PASS=hunter2", "hunter2"),
    ("MYSQL_PWD=hunter2", "hunter2"),
    ("PGPASSWORD=hunter2 psql", "hunter2"),
    ("SSHPASS=hunter2", "hunter2"),
    ("curl -u user:hunter2 https://x", "hunter2"),
    ("curl -ualice:hunter2 https://x", "hunter2"),
    ("hf_AbCdEf is no member", "AbCdEf"),
    ("['curl', '-u', 'user:hunter2', 'x']", "hunter2"),
    ("curl --user=me:hunter2 x", "hunter2"),
    ("mysql -u root -pPASS db", "PASS"),
    ("mysqldump -uroot -phunter", "hunter"),
    ("['mysql', '-pHunter2']", "Hunter2"),
    ("sshpass -p hunter ssh x", "hunter"),
    ("Cookie: session=0123abcd; theme=dark", "0123abcd", "dark"),
    ("{'Cookie': 'sid=abcd'}", "abcd"),
    ("Set-Cookie: a=hunter2; Path=/", "hunter2"),
    ("cookies={'sessionid': 'abc'}", "'abc'"),
    ("('password', 'hunter2')", "hunter2"),
    ("[('user', 'me'), ('api_key', 'abc123def456ghi789')]", "abc123"),
    ("(b'authorization', b'xyzzy')", "xyzzy"),
    ("auth=('alice', 'hunter2')", "hunter2"),
    ("HTTPBasicAuth('alice', 'hunter2')", "hunter2"),
    ("get(url, auth=HTTPBasicAuth('alice', 'hunter2'))", "hunter2"),
    ("password=SecretStr('hunter2')", "hunter2"),
    ("password=f'hunter2'", "hunter2"),
    ("{\"body\": \"{\\\"password\\\": \\\"hunter2\\\"}\"}", "hunter2"),
    ("{\"a\": \"{\\\\\\\"api_key\\\\\\\": \\\\\\\"k-1\\\\\\\"}\"}", "k-1"),
    ("sk-proj-abcdef123456", "abcdef"),
    ("sk_live_abcdefghijklmnopqrstuv", "abcdefgh"),
    ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7"),
    ("hf_abcdefghijkl", "abcdefghijkl"),
    ("xoxb-1234-5678-abcdef", "5678"),
    ("AKIAIOSFODNN7EXAMPLE", "OSFO"),
    ("glpat-abcdEFGH1234", "EFGH"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig", "hbGci"),
    ("wandb key 0123456789abcdef0123456789abcdef01234567", "456789"),
    ("npm_abcdefghij0123456789", "abcdef"),
    ("pypi-AgEIcHlwaS5vcmcCJGI", "AgEI"),
    ("AIzaSyA-abc_def1234", "SyA"),
    ("SG.abcdefg.hijklmnop", "abcdefg"),
    ("dop_v1_0123456789abcdef", "0123456789"),
    ("gsk_abcdefghij0123456789", "abcdefghij"),
    ("r8_abcdefghij0123456789", "abcdefghij"),
    ("nvapi-abc_DEF-123", "abc_DEF"),
    ("hvs.CAESIabcdefgh", "CAESI"),
    ("dapi0123456789abcdef0123456789abcdef", "0123456789"),
    ("whsec_abcdefghijkl", "abcdef"),
    ("api key 123e4567-e89b-12d3-a456-426614174000 was refused", "123e4567"),
    ("API key: 123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ("key=123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ("x-api-key: 123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nabc\n-----END OPENSSH PRIVATE KEY----- !", "b3Blb", "abc"),
    ("-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANB", "MIIE"),
    ("MIIEpAIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi/BqkC1x+7g9kL2mN4pQ6rS8tU", "3Tz2mr7"),
    ("Authorization: Bearer abc.def", "abc.def"),
    ("headers={'Authorization': 'token xyz'}", "xyz"),
    ("Authorization: AWS4-HMAC-SHA256 Credential=AKID/2026/us, Signature=fe5f80", "AKID", "fe5f80"),
    ("Proxy-Authorization: Basic dXNlcjpw", "dXNlcjpw"),
    ("Bearer eyAbCdEf12", "eyAbCdEf12"),
    ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("train.py --wandb-api-key 0123 --lr 3", "0123"),
    ("--password=hunter2", "hunter2"),
    ("['--token', 'abc']", "abc"),
    ("--password hunter2", "hunter2"),
    ("clientSecret: hunter2", "hunter2"),
    ("dbPassword=hunter2", "hunter2"),
    ("accessToken: abcdef", "abcdef"),
    ("password%3Dhunter2", "hunter2"),
    ("<password>hunter2</password>", "hunter2"),
    ("machine h login me password hunter2", "hunter2"),
    ("kubectl create secret generic x --from-literal=db='hunter2'", "hunter2"),
    ("echo hunter2 | docker login -u me --password-stdin", "hunter2"),
    ("secretKey: !!str hunter2", "hunter2"),
    ("{\"name\": \"DB_PASSWORD\", \"value\": \"hunter2\"}", "hunter2"),
    ("name='API_KEY', value='hunter2'", "hunter2"),
    ("wrong password 'hunter2'", "hunter2"),
    ("with password hunter2", "hunter2"),
    ("passphrase => hunter2", "hunter2"),
    ("passwd := hunter2", "hunter2"),
    ("user=me, pw=hunter2", "hunter2"),
    ("Passwort: hunter2", "hunter2"),
    ("密码: hunter2", "hunter2"),
    ("KeyError: 'sk-proj-abcdef123456'", "abcdef"),
    ("https://x.example/cb?code=abcdef123&state=1", "abcdef123"),
    ("password = 'it\\'s hunter2'", "hunter2"),
    ("password=\"a b\\\"hunter2\"", "hunter2"),
    ("secret=hunter2", "hunter2"),
    ("credentials: alice hunter2", "hunter2"),
    ("https://key0123456@o1.ingest.sentry.io/5", "key0123456"),
    ("SharedAccessSignature=sv=2020&sig=abc%3D", "abc%3D"),
    ("AccountKey=abc/def==", "abc/def"),
    ("session_token='FwoGZXIvYXdzEBYaD'", "FwoG"),
    ("X-Auth-Token: abc", "abc"),
    ("refresh_token=1//0abcdefghijklmnopqrstuvwxyz", "abcdefgh"),
    ("NCCL_AUTH=hunter2", "hunter2"),
    ("NET_AUTHTOKEN=hunter2", "hunter2"),
    ("CUDA_PASSPHRASE=hunter2", "hunter2"),
    ("set_password('hunter2')", "hunter2"),
    ("Password (hunter2) rejected", "hunter2"),
    ("password [hunter2]", "hunter2"),
    ("password -> hunter2", "hunter2"),
    ("password|hunter2", "hunter2"),
    ("PASSWORD\thunter2", "hunter2"),
    ("api_key\n  hunter2hunter", "hunter2"),
    ("Basic YWxpY2U6aHVudGVyMg==", "YWxp"),
    ("token: 8f3b2c1d9e", "8f3b"),
    ("X_TOKEN=abcdef", "abcdef"),
    ("secret: hunter2 used", "hunter2"),
    ("The password was: hunter2", "hunter2"),
    ("password 'hun ter2'", "ter2"),
    ("mongodb+srv://u:hunter2@c.example", "hunter2"),
    ("AZURE_CLIENT_SECRET=abc~DEF.ghi", "DEF"),
    ("api_key=\"A+b/c==\"", "A+b"),
    ("oauth_token_secret=abcd", "abcd"),
    ("'secret_key': b'\\x01hunter2'", "hunter2"),
    ("{'authorization': ['Bearer abc.def']}", "abc.def"),
    ("Authorization=Digest username=\"me\", response=\"hunter2\"", "hunter2"),
    ("s3://key:secret@bucket/path refused", "key:secret"),
    ("access key AKIAIOSFODNN7EXAMPLE", "IOSF"),
    ("ssh-password: hunter2", "hunter2"),
    ("--mysql-pass hunter2", "hunter2"),
    ("--api_key=k1", "k1"),
    ("&quot;password&quot;: &quot;hunter2&quot;", "hunter2"),
    ("WANDB_KEY=0a1b2c3d4e5f6a7b8c9d", "0a1b2c"),
    ("env: {\"name\":\"TOKEN\",\"value\":\"abc12def\"}", "abc12def"),
    ("curl --user 'alice:hunter2' x", "hunter2"),
    ("docker login -u me -p hunter2", "hunter2"),
    ("redis-cli -a hunter2", "hunter2"),
    ("%22password%22%3A%22hunter2%22", "hunter2"),
    ("Pass phrase: hunter2", "hunter2"),
    ("jdbc:postgresql://h/db?user=u&password=hunter2", "hunter2"),
    ("Server=x;Uid=me;Pwd=hunter2;", "hunter2"),
    ("license key: ABCD-EFGH-1234", "EFGH"),
    ("routing_key: abc123", "abc123"),
    ("user/pass: alice/hunter2", "hunter2"),
    ("root:$6$abcdef$ghijklmnop", "ghijklmnop"),
    ("{'password': {'value': 'hunter2'}}", "hunter2"),
    ("\"{'password': \\'hunter2\\'}\"", "hunter2"),
    ("SECRET_KEY_BASE=hunter2", "hunter2"),
    ("OTP 123abc456", "123abc456"),
    ("pwd hunter2", "hunter2"),
    ("aws configure set aws_secret_access_key wJalrXUtnFEMI/K7MDENG", "wJalr"),
    ("amqp://guest:hunter2@mq", "hunter2"),
    ("X-Amz-Signature=fe5f80f77d5fa3beca038a248ff027d0445342fe2855ddc963176630326f1024", "fe5f80"),
    ("Error: env HF_TOKEN='hf_abcDEF123456'", "abcDEF"),
    ("password:\n  hunter2", "hunter2"),
    ("git clone https://oauth2:hunter2@git.example/x", "hunter2"),
    ("PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nhunter2", "hunter2"),
    ("password: correct-horse", "correct-horse"),
    ("{\"api_key\": \"k-1\"}", "k-1"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
    ("passwd=x&user=me", "=x&"),
    ("curl -H Bearer eyAbCdEf12", "eyAbCdEf12"),
    ("no access for AKIAIOSFODNN7EXAMPLE", "AKIA"),
    ("github_pat_11ABCDEFG0123", "11ABC"),
    ("/runs/gho_abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/ghu_abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/ghs_abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/ghr_abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/glpat-abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/AIzaabcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/ya29.abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/nvapi-abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/wandb_v1_abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/sk-abcdEFGH1234/x", "abcdEFGH1234"),
    ("/runs/AKIAABCDEFGH1234/x", "ABCDEFGH1234"),
    ("/runs/ASIAABCDEFGH1234/x", "ABCDEFGH1234"),
    ("/runs/AROAABCDEFGH1234/x", "ABCDEFGH1234"),
    ("/runs/PWD=abc12/x", "abc12"),
    ("/runs/Passphrase=abc12/x", "abc12"),
    ("/runs/credential=abc12/x", "abc12"),
    ("/runs/PRIVATE-KEY=abc12/x", "abc12"),
    ("/runs/passwd=abc12/x", "abc12"),
    ("a/0123456789abcdef0123456789abcdef/x", "0123456789abcdef"),
    ("commit 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("blob QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODk=", "QUJDREVG"),
    ("connect to https://me:pw@host:8080/x failed", "me:pw"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- !", "MIIE"),
    ("fs.azure.account.key.acme.dfs.core.windows.net=Zm9vYmFy/abc==", "Zm9vYmFy"),
    ("https://storage.googleapis.com/b/o?X-Goog-Algorithm=GOOG4&X-Goog-Signature=247a2aa4d4", "247a2aa4d4"),
    ("https://b.example/k?Signature=q7Wx%2Bab", "q7Wx"),
    ("mc alias set m http://m:9000 minioadmin minioSecret9", "minioSecret9"),
    ("curl -b 'sid=hunter2' x", "hunter2"),
    ("wandb login --relogin abc123", "abc123"),
    ("vault login hunter2token", "hunter2token"),
    ("openssl enc -aes-256-cbc -k hunter", "hunter"),
    ("unzip -P hunter a.zip", "hunter"),
    ("snmpwalk -v 2c -c hunter h", "hunter"),
    ("ipmitool -H h -U admin -P hunter power", "hunter"),
    ("echo 'hunter2' | sudo -S ls", "hunter2"),
    ("wandb.login(key='0a1b2c3d4e5f')", "0a1b2c3d4e5f"),
    ("wandb.login(relogin=True, key='abc')", "'abc'"),
    ("env: [{name: API_KEY, value: hunter2}]", "hunter2"),
    ("<property><name>db.password</name><value>hunter2</value></property>", "hunter2"),
    ("Password for user me: hunter2", "hunter2"),
    ("Enter passphrase for key '/x/id': hunter2", "hunter2"),
    ("API key for wandb: hunter2", "hunter2"),
    ("cookie_header='sid=abc'", "sid=abc"),
    ("password_value: hunter2", "hunter2"),
    ("pat-na1-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "0a1b2c3d-0a1b"),
    ("ops_eyJzaWduSW5BZGRyZXNz", "eyJzaWdu"),
    ("role_id=x secret_id=123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ("Mot de passe : hunter2", "hunter2"),
    ("mot_de_passe=hunter2", "hunter2"),
    ("Passwort lautet hunter2", "hunter2"),
    ("密码是 hunter2", "hunter2"),
    ("비밀번호: hunter2", "hunter2"),
    ("hasło: hunter2", "hunter2"),
    ("wachtwoord: hunter2", "hunter2"),
    ("lösenord=hunter2", "hunter2"),
    ("password： hunter2", "hunter2"),
    ("pwd:\"\"\"hunter2\"\"\"", "hunter2"),
    ("password: |\n  hunter2", "hunter2"),
    ("password: >-\n    hunter2", "hunter2"),
)  # fmt: skip

ORDINARY = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/llama-7b/shard-00012-of-00512.safetensors'",
    "RuntimeError: NCCL communicator was aborted on rank 3: Watchdog caught collective operation timeout",
    "KeyError: 'model.layers.31.self_attn.q_proj.weight'",
    "ValueError: 32768 tokens are more than max_position_embeddings",
    "expected 50257 tokens, found 50304; basic block 12",
    "oom",
    "",
    "KeyError: 'password_field'",
    "KeyError: 'tokens'",
    "key 'tokens'",
    "tokens per second: 51234.5",
    "tokens/s 51234",
    "num_tokens=4096 max_new_tokens=128",
    "pad_token_id=0, eos_token_id=2, bos_token='<s>'",
    "pad_token: '[PAD]'",
    "tokenizer=LlamaTokenizerFast(vocab_size=128256)",
    "seconds per token: 0.012",
    "token 50257 is out of range",
    "forward pass: 0.31 s, backward pass: 0.62 s",
    "bypass=True",
    "author: Ada Lovelace",
    "sigma=0.13",
    "signal 9 (SIGKILL)",
    "signature: (Tensor input) -> Tensor",
    "key_padding_mask=None num_key_value_heads=8 key: torch.Size([8, 128, 4096])",
    "GPU-fa4e0000-0000-4000-8000-00000000000a has fallen off",
    "MIG-fa4e0000-0000-4000-8000-00000000000a",
    "size mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([32000, 4096])",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "step=480 loss=2.31 grad_norm=0.81 lr=3.0e-04",
    "train.py:88 load_batch",
    "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py:1661 _run_ddp_forward",
    "/usr/lib/python3.12/site-packages/transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py:88 forward",
    "hf_hub_download",
    "loading hf_llama3 and hf_bert",
    "/data/runs/Llama3Exp42/checkpoints/step_00012000/rank_0003.pt",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "_ZN3c104cuda20CUDACachingAllocator6mallocEmiP11CUstream_st",
    "tcp://10.0.0.7:29500 refused",
    "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json",
    "env://",
    "Connection to node-12:29500 timed out",
    "user@node-12: permission denied",
    "mail admin@example.org",
    "docker run -u 1000:1000 -p 8080:80 x",
    "gcc -pthread -O2",
    "password is required",
    "Permission denied (publickey,password)",
    "password authentication failed for user bob",
    "secret is missing",
    "token is invalid",
    "the token has expired",
    "wandb: ERROR api_key not configured (no-tty)",
    "invalid token",
    "ValueError: password must be a string",
    "passed 12, failed 3",
    "rank 3 passes",
    "assert passes == 3",
    "Basic usage: see docs",
    "Basic Training: 3 epochs",
    "AttributeError: 'NoneType' object has no attribute 'token'",
    "token=None, use_auth_token=False",
    "ValueError: Unrecognized configuration class for this kind of AutoModel",
    "TypeError: forward() got an unexpected keyword argument 'token_type_ids'",
    "[rank3]: torch.OutOfMemoryError: HIP out of memory",
    "Caught KeyError in DataLoader worker process 3.",
    "invalid literal for int() with base 10: 'abc'",
    "Key: lm_head.weight",
    "missing keys: ['lm_head.weight', 'model.norm.weight']",
    "unexpected key(s) in state_dict: \"module.encoder.layer.0.attention.self.query.weight\"",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART at aten/src/ATen/native/cudnn/Conv_v8.cpp:919",
    "UserWarning: os.fork() was called",
    "OSError: [Errno 28] No space left on device: '/scratch/alice/ckpt-0001200'",
    "exit code 137",
    "session: resumed at step 4,000",
    "ssh://git@github.com:22/org/repo.git",
    "{'token_str': 'paris', 'score': 0.91}",
    "wandb login required",
    "vault login failed",
    "access key for bucket x: required",
    "no password for user bob",
    "secret_id is missing",
    "key.account.name=x",
    "passes for rank 3: 12",
    "forward pass for epoch 12: loss=0.312",
    "the key for layer 3: layers.3.attn.q12",
    "pwd for job 12: /home/alice/run12",
    "tokens for rank 3: 4096",
    "code: 13",
    "ssh: connect to host node-3 port 22: Connection refused",
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error",
    "mlx5_0:1,mlx5_1:1",
    "cuda:0",
    "dataset shard s3://bucket/data/part-00012.parquet is missing",
    "hostname=node-12.cluster.example:10024/metrics",
    "You can pass `trust_remote_code=True` to load it",
    "please pass your token with `token=<your_token>`",
    "Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json",
    "['password', None]",
    "Error: passed `token=True`",
    "special tokens: {'bos_token': '<|begin|>', 'eos_token': '<|end|>'}",
    "pad_token=eos_token",
    "AssertionError: Token indices sequence length is longer than 2048",
    "key=value",
    "rank=3 key=0",
    "session=train",
    "tokens=[1, 2, 3]",
    "CUDA_VISIBLE_DEVICES=GPU-fa4e0000-0000-4000-8000-00000000000a",
    "compile cache key fx_graph_hit",
    "Unable to load weights from pytorch checkpoint file for '/data/checkpoint-1200/pytorch_model.bin'",
    "login: no password was given",
    "pass -u to update",
    "rank 3 of 8 passed `--local-rank`",
    "run -p 2 -u 1",
)  # fmt: skip

DETECTORS: tuple[type[RegexBasedDetector], ...] = (
    artifactory.ArtifactoryDetector, aws.AWSKeyDetector, azure_storage_key.AzureStorageKeyDetector,
    basic_auth.BasicAuthDetector, discord.DiscordBotTokenDetector, github_token.GitHubTokenDetector,
    gitlab_token.GitLabTokenDetector, jwt.JwtTokenDetector, mailchimp.MailchimpDetector, openai.OpenAIDetector,
    pypi_token.PypiTokenDetector, sendgrid.SendGridDetector, square_oauth.SquareOAuthDetector, stripe.StripeDetector,
    telegram_token.TelegramBotTokenDetector, twilio.TwilioKeyDetector,
)  # fmt: skip
"""The detectors of detect-secrets that know a secret by its form."""

PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)


@every("row", SECRETS)
def test_a_secret_is_taken_out(row: tuple[str, ...]) -> None:
    """Every spelling of a secret goes, also in the middle of a sentence, and something says that it was there."""
    text, *secrets = row
    for shown in (redact(text), redact(f"rank 3: request failed: {text}")):
        assert not [secret for secret in secrets if secret in shown]
        assert redact(shown) == shown
        assert REDACTED in shown


@every("text", ORDINARY)
def test_ordinary_words_stay(text: str) -> None:
    """A message without a secret is shown as it is."""
    assert redact(text) == text
    assert redact(f"rank 3: {text}") == f"rank 3: {text}"


def _forms() -> Iterator[tuple[type[RegexBasedDetector], re.Pattern[str]]]:
    for detector in DETECTORS:
        for form in detector.denylist:
            if "{secret_keyword}" not in form.pattern and not form.pattern.startswith("aws"):  # a name, as below
                yield detector, form


@pytest.mark.parametrize(("detector", "form"), list(_forms()), ids=lambda each: getattr(each, "__name__", "")[:20])
def test_what_a_secret_scanner_finds_is_redacted(detector: type[RegexBasedDetector], form: re.Pattern[str]) -> None:
    """detect-secrets, which has rules for what is a secret, finds none in what is left of any text of its forms."""

    @given(st.from_regex(form, fullmatch=True, alphabet=PRINTABLE))
    @settings(max_examples=40, deadline=None, derandomize=True)
    def redacts(text: str) -> None:
        assume(not set(text) & set("'\"`\\"))
        shown = redact(f"refused: {text} .")
        assert not [found for found in detector().analyze_string(text) if len(found) > 5 and found.strip() in shown]

    redacts()


@every("row", SECRETS)
def test_a_secret_scanner_finds_no_name_with_its_value(row: tuple[str, ...]) -> None:
    """What detect-secrets finds behind a name of these spellings is not shown either."""
    for line in row[0].splitlines():
        found = KeywordDetector().analyze_line(filename="", line=line, line_number=1)
        values = [each.secret_value for each in found if each.secret_value and len(each.secret_value) > 5]
        assert not [value for value in values if value in redact(row[0])]


def test_a_line_of_base64_is_redacted() -> None:
    """A line out of the middle of a private key, or any other long word without sense, is not shown."""
    source = random.Random(1)
    for _ in range(200):
        line = base64.b64encode(source.randbytes(48)).decode()
        assert redact(line) == REDACTED
        assert redact(f"got {line}, expected none") == f"got {REDACTED}, expected none"
    assert redact("Q9fJ2k+8sLw/Tg==") == REDACTED


def test_a_private_key_over_several_lines_is_redacted_whole() -> None:
    """Of a key that was logged line by line not even the last, short line is shown; what follows it is."""
    lines = ["loading", "-----BEGIN RSA PRIVATE KEY-----", "MIIE", "abc", "-----END RSA PRIVATE KEY-----", "loaded"]
    assert redact_lines(lines) == ["loading", REDACTED, REDACTED, REDACTED, REDACTED, "loaded"]
    assert redact_lines(lines[2:4]) == ["MIIE", "abc"]  # nothing says what these are


def test_what_the_cut_goes_through_is_still_a_secret() -> None:
    """A text is cut after it was redacted, so that half of a secret does not pass for something else."""
    for secret in ("https://me:hunter2hunter2@host/x", "sk_live_abcdefghijklmnopqrstuv", "token=hunter2"):
        for length in range(LONGEST - 40, LONGEST + 40):
            shown = redact("x " * (length // 2) + secret)
            assert "hunter" not in shown
            assert "sk_live" not in shown
            assert len(shown) <= LONGEST


def test_a_long_text_costs_little() -> None:
    """No pattern goes over a text again and again, however long it is and whatever it repeats."""
    parts = (
        "a", "A1b", "token", "x=", "sk-", "a:b@", "aa://", "-", "--token", " token ", "eyJaaaaaaaa.", "eyJ-", "key ",
        "'", "\\'", " ", "-u ", "mysql ", "http://a/", "password: ", "pass(", "{", "0", "a1", "-----BEGIN ", "BEGIN A",
    )  # fmt: skip
    for part in parts:
        assert len(redact(part * 500_000)) <= LONGEST
