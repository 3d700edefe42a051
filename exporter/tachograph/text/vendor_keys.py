"""Keys that say of themselves what they are: prefixes as their vendors and secret scanners document them."""

from __future__ import annotations

import re

_VENDORS = (
    # AWS · GitHub · GitLab · Hugging Face · OpenAI, Anthropic and others · Stripe · Slack · Google · NVIDIA · W&B
    r"(?:AKIA|ASIA|AROA|ABIA|ACCA|AGPA|AIDA|ANPA|A3T[A-Z0-9])[0-9A-Z]{12,}",
    r"(?:gh[pousr]_|github_pat_)\w{6,}",
    r"(?:gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct|wt)-|GR1348941)[\w.-]{6,}",
    r"(?:hf|api_org)_(?:[A-Za-z0-9]{10,}|(?=[a-z0-9]{0,9}[A-Z])[A-Za-z0-9]{4,})",
    r"sk-(?=[\w-]{0,80}\d|[\w-]{20})[\w-]{6,}",
    r"(?:[srp]k|rak)_(?:live|test|prod)_\w{6,}|whsec_[\w+/=]{10,}",
    r"xox[a-zA-Z](?:\.xox[a-zA-Z])?-[\w.%-]{3,}|xapp-[\w-]{6,}",
    r"AIza[\w-]{6,}|ya29\.[\w.-]{6,}|GOCSPX-[\w-]{6,}|1//0[\w-]{20,}",
    r"nvapi-[\w-]{6,}|wandb_v1_\w{6,}",
    # npm · PyPI · SendGrid · DigitalOcean · Docker · Vault · Doppler · Databricks · Terraform · Atlassian · Grafana
    r"npm_\w{10,}|pypi-[\w-]{16,}|rubygems_\w{16,}",
    r"SG\.[\w-]{6,}\.[\w-]{6,}",
    r"do[opr]_v1_\w{3,}|dckr_(?:pat|oat)_[\w-]{6,}",
    r"hv[sbr]\.[\w-]{10,}|dp\.(?:pt|st|ct|scim|audit)\.\w{6,}|dapi[0-9a-f]{30,}(?:-\d)?",
    r"\w{14}\.atlasv1\.[\w=-]{10,}|ATATT3x[\w=-]{10,}|ATBB\w{10,}|gl(?:sa|c)_\w{10,}={0,2}",
    # Groq, Replicate, xAI, Perplexity, Together, LangSmith, Pinecone, RunPod, Fireworks, Tavily, Jina, Anyscale …
    r"(?:gsk|r8|tgp_v1|lsv2_[ps][tk]|pcsk|rpa|fw|jina|esecret|ntn|figd|lin_api|sbp|nfp|e2b|bkua|phx|mat|comet)_\w{12,}",
    r"(?:xai|pplx|csk|tvly|PMAK|tskey|NR(?:AK|JS|II|RA)|pul|CFPAT|age-secret-key|AGE-SECRET-KEY|sntry[su])"
    r"[-_][\w-]{12,}|sq0[ac][ts]p-[\w\\-]{12,}",
    r"shp(?:at|ss|ca|pa)_[0-9a-fA-F]{16,}|EAAA[\w-]{40,}|(?:AC|SK)[0-9a-z]{32}|key-[0-9a-f]{32}|AK[CP][A-Za-z0-9]{10,}",
    # HubSpot · 1Password · JFrog, Alibaba, Tencent, Volcano, Dropbox
    r"pat-[a-z]{2}\d-[0-9a-f-]{16,}|ops_eyJ[\w-]{8,}",
    r"AP[\dA-F][A-Za-z0-9]{8,}(?=[\s\"]|$)|LTAI\w{12,}|AKID\w{12,}|AKLT\w{12,}|sl\.[\w-]{40,}",
    # JSON web tokens · bots of Discord and Telegram
    r"eyJ[\w=-]{8,}\.[\w=-]+(?:\.[\w.+/=-]*)?",
    r"[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|\d{8,10}:[\w-]{35}",
    r"\$(?:2[abxy]|[156y]|argon2\w{0,3})\$[^\s'\"]{10,}",
    # hashes, which many keys look like · other keys without capitals
    r"[0-9a-fA-F]{32,}|[0-9a-z]{32}-us\d{1,2}",
    r"(?=[a-z]*(?:\d[a-z]*){6})(?=\d*(?:[a-z]\d*){6})[a-z0-9]{32,}",
)
VENDOR_KEY = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_VENDORS)})")
