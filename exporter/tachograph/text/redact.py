"""Removal of what looks like a secret from text that a program wrote for its own user. Standard library only.

Three kinds are found: texts that say of themselves what they are (keys with a vendor's prefix, addresses of webhooks,
blocks of private keys), values behind a name (`password: …`, `--token …`, `("api_key", "…")`), and long words that no
person would write. The tests hold it against detect-secrets, whose rules a training job cannot load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from tachograph.text.vendor_keys import VENDOR_KEY

REDACTED = "[redacted]"
LONGEST = 512
"""Characters that are returned, three times what a page shows; the rest is cut off."""

_LOOKED_AT = 2 * LONGEST
"""Characters that are looked at, to the last whole word: a secret that the cut goes through is still seen as one."""

_KEY = r"(?:PRIVATE KEY(?: BLOCK)?|SSH2 ENCRYPTED PRIVATE KEY)"
_KEY_BEGINS = re.compile(rf"(?:-{{4,5}} ?)?BEGIN [A-Z0-9 ]{{0,30}}{_KEY}|PuTTY-User-Key-File-\d")
_KEY_ENDS = re.compile(rf"END [A-Z0-9 ]{{0,30}}{_KEY}(?: ?-{{4,5}})?|Private-MAC: \S+")

_WEBHOOK = re.compile(
    r"(https?://(?:[^\s'\"]{0,160}?hook[^\s/'\"]{0,64}/"  # hooks.slack.com/…, /api/webhooks/…, /webhookb2/…
    r"|api\.telegram\.org/bot|hc-ping\.com/|maker\.ifttt\.com/|events\.pagerduty\.com/|api\.softlayer\.com/soap/))"
    r"[^\s'\"<>\\]+",
    re.IGNORECASE,
)
_USER_INFO = re.compile(
    # user:password@host, where the password may hold / and @, and is no port; also cut off before the @. user@host
    r"(?<=://)(?!git@)(?:(?:[^\s/@'\":\[]{0,128}:(?!\d{1,5}(?:[/?#]|$)))(?:[^\s'\"]{1,256}(?=@)|[^\s'\"]{1,256}$)"
    r"|[^\s/@'\":]{1,256}(?=@))"
)
_USER_AT_HOST = re.compile(
    r"(?<![\w.:/@-])([A-Za-z][\w.-]{0,63}:)(?!//)(?!\d{1,5}@)([^\s:@'\"]{3,128})(?=@(?!sha256)[\w.-])"
)

_SCHEME = re.compile(
    r"\b([Bb]earer|BEARER)\s+(?!tokens?\b|auth)[\w.~+/=-]{6,}"
    r"|\b([Bb]asic|BASIC)\s+(?=\S{0,512}[A-Z0-9=])(?=.\S{0,512}[A-Z0-9=])[\w.~+/=-]{6,}"
)
_OPTION = re.compile(
    # curl -u user:password, mysql -pPASSWORD; not docker -u 1000:1000, -p 8080:80, -pthread
    r"(?<![\w-])(-u|--user|--proxy-user|--userpwd)(['\",=\s]{1,4}|(?<=-u))([^\s:'\"]{1,64}:)(?!\d+(?![^\s'\"]))([^\s'\"]+)"
    r"|(?<![\w-])(-p)(?=[^\s'\",]{0,64}[A-Z0-9@#$!%^&])(?![\d:.]+(?:[\s'\",]|$))([^\s'\",]{3,})"
    r"|\b((?:(?:mysql|mariadb|mongo|sshpass|redis-cli|ldap|sqlcmd|psql|login)[^\n]{0,80}?\s-[pPaw]"
    r"|(?:ipmitool|zip|unzip)\b[^\n]{0,80}?\s-P|openssl\b[^\n]{0,80}?\s-k|snmp\w{3,8}\b[^\n]{0,80}?\s-[cAX]"
    r"|curl\b[^\n]{0,80}?\s-b)['\", ]{0,4})([^\s'\",-][^\s'\",]*)"
)
_COMMAND = re.compile(
    r"(\blogin\s+\S{1,64}\s+password\s+"  # .netrc
    r"|--from-literal[= ]['\"]?[\w.-]{1,64}=['\"]?"
    r"|\b(?:wandb|vault)\s+login\s+(?:--[\w-]+\s+){0,3}(?=[A-Za-z.]{0,64}\d)"
    r"|\blogin\((?:[^()\n]{0,80},\s{0,4})?key\s{0,4}=\s{0,4}['\"]"
    r"|\bmc\s+(?:alias|config\s+host)\s+(?:set|add)\s+\S{1,64}\s+\S{1,128}\s+\S{1,64}\s+"
    r"|\b(?:echo|printf)\s+(?:-\w\s+)?['\"]?(?=[^\s|]{1,256}\s{0,4}\|[^\n]{0,80}(?:--password-stdin|sudo\s+-S)))"
    r"([^\s'\"]+)"
)
_QUERY = re.compile(
    r"([?&](?:key|code|auth|sig|sign|(?:x-\w{2,8}-)?signature|se?cret|k|sid|session)=)([^\s&'\"]{6,})", re.IGNORECASE
)

_STRONG = (
    "password", "passwords", "passwd", "passphrase", "passcode", "passwort", "kennwort", "contraseña", "contrasena",
    "senha", "motdepasse", "wachtwoord", "lösenord", "passord", "adgangskode", "salasana", "parola", "hasło", "heslo",
    "jelszó", "şifre", "пароль", "密码", "口令", "パスワード", "비밀번호", "pwd", "pw", "pass", "secret", "secrets",
    "credential", "credentials", "creds", "cred", "otp", "totp",
)  # fmt: skip
_LONG_STRONG = tuple(word for word in _STRONG if len(word) > 5 or not word.isascii())
_KEYS = (
    "apikey", "authkey", "accesskey", "secretkey", "privatekey", "accountkey", "sharedkey", "masterkey", "servicekey",
    "clientkey", "dbkey", "authtoken", "accesstoken", "apitoken", "sessionid", "sessid", "csrftoken", "bearer", "密钥",
)  # fmt: skip
_SHORT_KEYS = frozenset(("sig", "sas", "jwt"))
_MAYBE = frozenset(("key", "signature", "session", "sid", "code", "dsn", "nonce", "salt"))
_HEADERS = frozenset(("authorization", "cookie", "cookies"))
_OF_KEYS = frozenset((
    "api", "access", "secret", "private", "account", "auth", "authorization", "signing", "signature", "encryption",
    "shared", "master", "session", "client", "db", "service", "subscription", "license", "deploy", "ssh", "storage",
    "project", "user", "admin", "root", "priv", "key", "database", "hmac", "sas", "functions", "host", "routing",
    "integration", "consumer", "bot", "app", "application", "webhook", "ingest", "wandb", "openai", "anthropic", "hf",
    "huggingface", "mistral", "cohere", "gemini", "google", "aws", "azure", "gcp", "s3", "minio", "comet", "neptune",
    "mlflow", "clearml", "together", "replicate", "groq", "ngc", "nvidia", "github", "gitlab", "slack", "sendgrid",
    "stripe", "twilio", "datadog", "dd",
))  # fmt: skip
_OF_TEXT = frozenset((
    "eos", "bos", "pad", "unk", "sep", "cls", "mask", "special", "per", "image", "video", "audio", "prompt", "new",
    "start", "end", "stop", "begin", "next", "last", "first", "cur", "current", "prev", "previous", "prefix",
    "suffix", "middle", "fim", "eot", "eod", "decoder", "encoder", "forced", "target", "text", "additional", "extra",
    "dummy", "think", "class", "dist",
))  # fmt: skip
"""What a token is of in a language model."""

_ABOUT = frozenset((
    "id", "ids", "name", "names", "file", "files", "path", "paths", "dir", "folder", "len", "length", "size", "count",
    "counts", "type", "types", "url", "uri", "host", "port", "field", "fields", "policy", "version", "ttl", "expiry",
    "expires", "expired", "expiration", "error", "errors", "manager", "store", "provider", "required", "enabled",
    "env", "var", "reset", "changed", "hash", "algorithm", "index", "at", "rate", "limit", "per", "sec", "s",
    "second", "seconds",
))  # fmt: skip
"""The last word of a name that is about a secret and not the secret."""

_HOLDERS = frozenset(("header", "headers", "value", "string", "str", "plain", "plaintext", "raw", "base64"))
"""Last words of a name that say in which form the secret is."""

_PASSES = ("bypass", "compass", "surpass", "trespass", "overpass", "underpass", "multipass")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+")

_QUOTE = r"(?:\\{0,7}['\"`]|&quot;|%2[27])"
_NAMED = re.compile(
    r"(?:(?<![\w.-])|(?<=%22)|(?<=%27))(-{0,3})"
    r"(pass[ -](?:word|phrase|code)\b|mot de passe\b"
    r"|(?:api|access|secret|private|account|auth|session|signing|encryption|license)[ -](?:key|token)s?\b"
    r"|[^\W\d][\w.-]{0,80})"
    rf"({_QUOTE}?\]?)"
    r"(\s{0,8}(?:->|=>|:=|={1,2}|[:：]|\||%3[ad])\s{0,8}(?:!!\w{1,16}\s{1,4})?(?:[|>][-+\d]{0,2}[ \t]{0,4}\n\s{1,16})?"
    r"|\s{0,4},\s{0,4}|</\w{1,16}>\s{0,16}<value>|>|\(|\s{1,4}(?:is|was|ist|lautet|est)[ :]{1,4}"
    r"|\s{1,4}for [^\n:]{1,80}:\s{1,4}|\s{1,4})",
    re.IGNORECASE,
)
_VALUE_KEY = re.compile(rf"{_QUOTE}?value{_QUOTE}?\s{{0,4}}[:=]\s{{0,4}}")  # name: "X", value: "…"
_OPENING = re.compile(rf"[bfru]{{0,2}}(\"{{3}}|'{{3}}|{_QUOTE}|[\[({{])", re.IGNORECASE)
_CALLED = re.compile(rf"[A-Za-z_][\w.]{{0,80}}\((?={_QUOTE})")
_UP_TO_QUOTE = {'"': re.compile(r'(?:\\.|[^"\\])*'), "'": re.compile(r"(?:\\.|[^'\\])*"), "`": re.compile(r"[^`]*")}
_NO_BRACKET = re.compile(r"[^\])}]*")
_WORD = re.compile(r"(?:(?:bearer|basic|token|apikey)\s+)?[^\s'\"<&]*[^\s'\"<&,;)\]}\\]", re.IGNORECASE)
_LINE = re.compile(r"[^\n]+")
_HEADER = re.compile(r"[^\n']+")

_ABSENT = re.compile(r"(?:none|null|nil|true|false|undefined|<\w+>|\*+|\[redacted\])(?![\w-])", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,6}|\d+\.\d*(?:e[-+]?\d+)?)[\w%/]{0,6}(?=[\s,;)\]}'\"]|$)", re.IGNORECASE)
_SAID_OF = re.compile(
    r"(?:an?|the|not|no|required|missing|invalid|wrong|incorrect|empty|expired|too|set|unset|needed|never|only|being|been"
    r"|longer|shorter|now|still|also|already|used|unused|deprecated|revoked|unknown|undefined|valid|malformed|in|of|on"
    r"|for|from|to|at|with|stored|read|given|passed|protected|different|same|ok|correct|known|ignored|optional|must"
    r"|shared|sent|that|this|available|accepted|rejected|denied|absent|present|and|or|by|as|was|is|failed|authentication"
    r"|could|should|cannot|can|may|will|has|found)\b",
    re.IGNORECASE,
)
_MIXED = re.compile(r"(?=[^\s'\",;)]{0,64}[^\W\d])(?=[^\s'\",;)]{0,64}\d)[^\s'\",;)]{6,}")

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RANDOM_LENGTH = 32
_LONG_WORD = re.compile(r"(?<![\w+/-])[A-Za-z0-9+/_-]{32,}={0,2}")
_PEM_END = re.compile(r"^[A-Za-z0-9+/]{8,}={1,2}$", re.MULTILINE)
_SPOKEN = re.compile(r"[A-Z][a-z]{3,}|[a-z]{4,}|[A-Z]{4,}")

_MARKS = (
    "pass", "pwd", "pw", "tok", "secret", "cred", "key", "auth", "bearer", "cookie", "sess", "sig", "sas", "jwt",
    "sid", "otp", "code", "dsn", "nonce", "salt", "kennwort", "contras", "senha", "wachtw", "adgangs", "salasana",
    "parola", "heslo",
)  # fmt: skip
"""One of these is in every name of a secret that is ASCII: without, a path is redacted in a third of the time."""

Kind = Literal["strong", "header", "key", "token", "maybe", ""]
"""How surely what has a name is secret: `maybe` where only the value can tell."""

How = Literal["assigned", "paired", "spoken", "beside"]
"""How a value stands behind its name: `name: value`, `"name", "value"`, `name is value`, `name value`."""


class _Value(NamedTuple):
    """A piece of a text, and whether quotes or brackets are around it."""

    start: int
    end: int
    enclosed: bool


def redact(text: str) -> str:
    """Return the beginning of a text, with everything that looks like a password, key or token replaced."""
    if not text:
        return text
    if len(text) > _LOOKED_AT:
        text = re.sub(r"\s\S*$", "", text[:_LOOKED_AT])
    text = _without_private_keys(text)
    text = _WEBHOOK.sub(rf"\1{REDACTED}", text)
    text = _USER_INFO.sub(REDACTED, text)
    text = _USER_AT_HOST.sub(rf"\1{REDACTED}", text)
    lower = text.lower()
    if any(mark in lower for mark in _MARKS) or not text.isascii():
        text = "".join(_without_named(text))
    text = _SCHEME.sub(lambda found: f"{found[1] or found[2]} {REDACTED}", text)
    text = _OPTION.sub(_option, text)
    text = _COMMAND.sub(rf"\1{REDACTED}", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    text = VENDOR_KEY.sub(REDACTED, text)
    text = _LONG_WORD.sub(_without_random, text)
    return _PEM_END.sub(REDACTED, text)[:LONGEST]


def redact_lines(lines: Iterable[str]) -> list[str]:
    """Return lines of one log, each redacted, without the private key that goes over several."""
    shown, inside = [], False
    for line in lines:
        begins = _KEY_BEGINS.search(line)
        shown.append(REDACTED if inside and begins is None else redact(line))
        if begins is not None or inside:
            inside = _KEY_ENDS.search(line, begins.end() if begins else 0) is None
    return shown


def names_secret(name: str) -> bool:
    """Return whether what has this name, such as a variable, is secret whatever it is."""
    return _kind_of(name[:LONGEST]) not in ("maybe", "")


def _without_private_keys(text: str) -> str:
    begins = _KEY_BEGINS.search(text)
    if begins is None:
        return text
    ends = _KEY_ENDS.search(text, begins.end())
    return text[: begins.start()] + REDACTED + ("" if ends is None else _without_private_keys(text[ends.end() :]))


def _without_named(text: str) -> Iterator[str]:
    """Yield the pieces of a text without the values whose names are those of secrets."""
    done = at = 0
    while found := _NAMED.search(text, at):
        at = found.end() if found[4].strip() else found.end(3)
        value = _secret_behind(text, found)
        if value is not None:
            yield text[done : value.start]
            yield REDACTED
            done = at = value.end
    yield text[done:]


def _secret_behind(text: str, found: re.Match[str]) -> _Value | None:
    """Return the value behind a name, None if there is none or it is not secret."""
    flag, name, quoted, between = found.groups()
    start, sign, kind = found.end(), between.strip().lower(), _kind_of(name)
    is_tag = text[found.start() - 1 : found.start()] == "<"  # <password>…
    if not kind or (sign == ">" and not is_tag) or text.startswith(REDACTED, start):
        return None
    if sign.startswith("for ") and kind != "key" and not name.lower().endswith(_LONG_STRONG):
        return None  # a forward pass for step 3: …
    how: How = "assigned"
    if sign == "," and not flag:
        how = "paired"
        if not quoted and _VALUE_KEY.match(text, start) is None:
            return None
    if value_key := _VALUE_KEY.match(text, start):  # "name": "DB_PASSWORD", "value": "…"
        start, how = value_key.end(), "assigned"
    elif not flag:
        how = "beside" if not sign else "spoken" if between[0].isspace() and sign[0].isalpha() else how
    if sign == "(" and name.lower().endswith("auth"):  # HTTPBasicAuth('alice', '…')
        value: _Value | None = _Value(start, _up_to_bracket(text, start), enclosed=True)
    elif called := _CALLED.match(text, start):  # auth=HTTPBasicAuth('alice', '…'), password=SecretStr('…')
        value = _Value(start, _up_to_bracket(text, called.end()) + 1, enclosed=True)
    else:
        value = _enclosed(text, start)
    if value is None and sign != "(":
        several = (
            kind == "strong" and not flag and (how == "spoken" or between != sign) and "secret" not in name.lower()
        )
        value = _bare(text, start, kind, several=several and how != "beside")
    return value if value is not None and _is_secret(name, kind, how, text[value.start : value.end], value) else None


def _enclosed(text: str, start: int) -> _Value | None:
    """Return what is in the quotes that begin here, or the brackets, up to the end of the text if they do not end."""
    opening = _OPENING.match(text, start)
    if opening is None:
        return None
    mark = opening[1]
    if mark in "[({":
        return _Value(start, _up_to_bracket(text, opening.end()) + 1, enclosed=True)  # the brackets go, too
    start = opening.end()
    if plain := _UP_TO_QUOTE.get(mark):
        rest = plain.match(text, start)
        return _Value(start, start if rest is None else rest.end(), enclosed=True)
    end = text.find(mark, start)  # \" or &quot;: up to the same again
    return _Value(start, len(text) if end < 0 else end, enclosed=True)


def _up_to_bracket(text: str, start: int) -> int:
    rest = _NO_BRACKET.match(text, start)
    return start if rest is None else rest.end()


def _bare(text: str, start: int, kind: Kind, *, several: bool) -> _Value | None:
    """Return the word that begins here; of a header, or of `several`, all to the end of the line."""
    extent = _HEADER if kind == "header" else _LINE if several else _WORD
    word = extent.match(text, start)
    return None if word is None else _Value(start, word.end(), enclosed=False)


def _is_secret(name: str, kind: Kind, how: How, text: str, value: _Value) -> bool:
    if not text or _ABSENT.match(text):
        return False
    if kind == "maybe":
        return _is_key(text)
    is_mixed, is_said = _MIXED.match(text), _SAID_OF.match(text)
    is_verb = name.lower() in ("pass", "pw")
    if how == "beside":  # "password hunter2", but not "password authentication failed", "pass `token=True`"
        is_whole = is_mixed is not None and is_mixed.end() == len(text) and is_said is None
        secret = kind != "header" and not is_verb and (is_whole or (value.enclosed and kind == "strong"))
    elif how == "spoken":  # "password is hunter2", but not "password is required"
        secret = is_said is None and (is_mixed is not None or (kind == "strong" and not is_verb))
    elif how == "paired" and kind in ("key", "token"):  # not ["token", "label"]
        secret = is_mixed is not None
    elif kind == "token":  # not token=50256, bos_token='<s>'
        secret = not (_NUMBER.fullmatch(text) or text[0] in "<[({" or "tensor" in text)
    else:  # not "forward pass: 0.3 s"
        secret = not (is_verb and _NUMBER.fullmatch(text.partition(" ")[0]))
    return secret


def _kind_of(name: str) -> Kind:
    """Return how surely what has this name is secret, "" if it is not."""
    parts = [part.lower() for part in _PARTS.findall(name.rstrip("是为"))] or [name.lower()]
    last, whole, before = parts[-1], "".join(parts), parts[-2] if len(parts) > 1 else ""
    if before and last in _HOLDERS and (held := _kind_of(name[: name.lower().rindex(last)])) not in ("token", "maybe"):
        return held
    if last == "id" and before in _STRONG:
        return "maybe"
    if (before and last in _ABOUT) or last.endswith(_PASSES):
        return ""
    if "." in name and any(one in _OF_KEYS and other == "key" for one, other in pairwise(parts)):
        return "key"  # account.key.acme.dfs.core.windows.net
    return _kind_of_last(parts, last, whole, before)


def _kind_of_last(parts: Iterable[str], last: str, whole: str, before: str) -> Kind:
    """Return how surely what is called by these parts, or by all of them together, is secret."""
    if last in _STRONG or last == "auth" or whole.endswith(("pass", "pwd")):
        return "strong"
    if any(part.endswith(_LONG_STRONG) for part in (*parts, whole)):
        return "strong"
    if last in _SHORT_KEYS or whole.endswith(_KEYS) or (last in ("key", "keys") and before in _OF_KEYS):
        return "key"
    if last.endswith("token") or (last == "tokens" and before in _OF_KEYS):
        return "" if before in _OF_TEXT else "token"
    return "header" if last in _HEADERS else "maybe" if last in _MAYBE or last.endswith("key") else ""


def _option(found: re.Match[str]) -> str:
    if found[1]:
        return f"{found[1]}{found[2]}{found[3]}{REDACTED}"
    return f"{found[5] or found[7]}{REDACTED}"


def _is_key(text: str) -> bool:
    """Return whether a value is the key that its name lets expect: a UUID, or a long word that is not spoken."""
    if _UUID.fullmatch(text):
        return not text.startswith(("GPU", "MIG"))
    return len(text) >= 16 and text[0] not in "/.<" and _is_unspoken(text) and any(map(str.isdigit, text))


def _without_random(found: re.Match[str]) -> str:
    """Return a long word, or the parts of a path, without what is random."""
    if _is_random(found[0]):
        return REDACTED
    return "/".join(
        REDACTED if len(part) >= _RANDOM_LENGTH and _is_random(part) else part for part in found[0].split("/")
    )


def _is_random(word: str) -> bool:
    """Return whether a long word has all that is in base64 and is no name, path or symbol."""
    if word.startswith("_Z") or _UUID.fullmatch(word):
        return False
    has_all = all(any(map(is_in, word)) for is_in in (str.isdigit, str.islower, str.isupper))
    return has_all and _is_unspoken(word)


def _is_unspoken(word: str) -> bool:
    """Return whether a word has few runs of letters as in words, and few separators as in names.

    Of random words of base64 with 32 characters, 97 % are found; of 700 long words in the sources of PyTorch and
    Transformers, among them names of models, symbols and kernels, two dozen are, nearly all of them ids.
    """
    separators = word.count("-") + word.count("_")
    most = 0.5 if separators else 0.6
    separators += word.count("/")
    return sum(map(len, _SPOKEN.findall(word))) < most * len(word) and separators * 6 < len(word)
