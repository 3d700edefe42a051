"""`--web.config.file` in the format of Prometheus' exporter-toolkit: TLS, client certificates, passwords, headers.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tachograph.files.yaml_file import YamlFileError, composed
from tachograph.node.config_file import ConfigError
from tachograph.text.humanize import suggestion

if TYPE_CHECKING:
    import yaml

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATES = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
"""Go has two more, which request a certificate without verifying it; Python does not support them."""

_CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("CHACHA20_POLY1305", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
}
"""Go's names of the suites up to TLS 1.2 that it supports; those of TLS 1.3 cannot be chosen there either."""

_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
HIGHEST_COST = 14
"""Maximum cost of a bcrypt hash: about a second on one core."""

_HEADERS: Mapping[str, tuple[str, ...] | None] = {
    "Content-Security-Policy": None,
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": None,
    "Strict-Transport-Security": None,
}
"""The headers that the toolkit supports, and their allowed values; None: any."""


@dataclass(frozen=True)
class WebConfig:
    """The protection of the exporter's port; by default there is none."""

    context: ssl.SSLContext | None = None
    client_names: frozenset[str] = frozenset()
    """Subject alternative names, one of which a client's certificate must have; empty: any verified certificate."""
    users: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[Path, ...] = ()
    """All files that this was read from."""


def is_named(certificate: Mapping[str, Any] | None, names: Set[str]) -> bool:
    """Return whether a certificate has one of these subject alternative names; without names, any will do."""
    found = {value for _, value in (certificate or {}).get("subjectAltName", ())}
    return not names or not names.isdisjoint(found)


def read_web_config(path: Path) -> WebConfig:
    """Return the configuration in a file; raise ConfigError with a line for each fault of it or a file it names."""
    reader = _Reader(path)
    try:
        config = reader.read()
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    if reader.faults:
        raise ConfigError(reader.faults)
    return config


class _Reader:
    def __init__(self, path: Path) -> None:
        self.faults: list[str] = []
        self._path = path
        self._lines: dict[str, int] = {}

    def read(self) -> WebConfig:
        try:
            root = composed(self._path)
        except YamlFileError as error:
            self.faults.append(str(error))
            return WebConfig()
        parts = self._table(root, "", {
            "tls_server_config": self._tls, "http_server_config": self._http, "basic_auth_users": self._users,
        }) if root is not None else {}  # fmt: skip
        tls = parts.get("tls_server_config") or {}
        named = (tls[key] for key in ("cert_file", "key_file", "client_ca_file") if key in tls)
        return WebConfig(
            context=self._context(tls) if "tls_server_config" in parts else None,
            client_names=frozenset(tls.get("client_allowed_sans", ())),
            users=MappingProxyType(parts.get("basic_auth_users") or {}),
            headers=MappingProxyType(parts.get("http_server_config") or {}),
            files=(self._path, *named),
        )

    def _tls(self, node: yaml.Node, name: str) -> dict[str, Any]:
        return self._table(node, name, {
            "cert_file": self._file, "key_file": self._file, "client_ca_file": self._file,
            "client_auth_type": self._one_of(_CLIENT_CERTIFICATES),
            "client_allowed_sans": self._texts,
            "min_version": self._one_of(_VERSIONS), "max_version": self._one_of(_VERSIONS),
            "cipher_suites": self._ciphers, "prefer_server_cipher_suites": self._truth,
        })  # fmt: skip

    def _http(self, node: yaml.Node, name: str) -> dict[str, str]:
        # This server speaks HTTP/1.1, whatever `http2` says: clients accept what they are offered.
        parts = self._table(node, name, {"http2": self._truth, "headers": self._headers})
        headers: dict[str, str] = parts.get("headers") or {}
        return headers

    def _headers(self, node: yaml.Node, name: str) -> dict[str, str]:
        readers = {key: self._one_of(("", *words)) if words else self._text for key, words in _HEADERS.items()}
        self._table(node, name, readers)
        found = {key.value: value.value for key, value in _pairs(node)}
        return {key: text for key, text in found.items() if text and key in _HEADERS}

    def _users(self, node: yaml.Node, name: str) -> dict[str, bytes]:
        if not _is_mapping(node):
            self._fault(node, name, "expected user names, each with a bcrypt hash")
            return {}
        users: dict[str, bytes] = {}
        for key, value in _pairs(node):
            user = str(key.value)
            text = self._text(value, f"{name}.{user}")
            found = _HASH.fullmatch(text)
            # The text is not shown: it may be the password itself.
            if found is None:
                self._fault(value, f"{name}.{user}", 'expected a bcrypt hash, as `htpasswd -nBC 10 ""` prints it')
            elif not 4 <= int(found[1]) <= HIGHEST_COST:
                self._fault(value, f"{name}.{user}", f"expected a bcrypt cost from 4 to {HIGHEST_COST}, not {found[1]}")
            elif user in users or ":" in user or not user:
                self._fault(key, f"{name}.{user}", "expected a user name without a colon, once")
            users[user] = text.encode()
        return users

    def _context(self, tls: Mapping[str, Any]) -> ssl.SSLContext | None:
        where = f"{self._path}:{self._lines['tls_server_config']}: tls_server_config"
        if missing := [key for key in ("cert_file", "key_file") if key not in tls]:
            self.faults.append(f"{where}: expected {' and '.join(missing)}")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[tls.get("min_version", "TLS12")]
        context.maximum_version = _VERSIONS[tls.get("max_version", "TLS13")]
        if context.minimum_version > context.maximum_version:
            self.faults.append(f"{where}: min_version is above max_version")
        if ciphers := tls.get("cipher_suites"):
            context.set_ciphers(":".join(_CIPHERS[name] for name in ciphers))
        if tls.get("prefer_server_cipher_suites", True):
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        self._load("cert_file", lambda: context.load_cert_chain(tls["cert_file"], tls["key_file"], password=""),
                   f"{tls['cert_file']} and {tls['key_file']}")  # fmt: skip
        mode = _CLIENT_CERTIFICATES[tls.get("client_auth_type", "")]
        if mode is not ssl.CERT_NONE and "client_ca_file" not in tls:
            self.faults.append(f"{where}: expected client_ca_file beside client_auth_type")
        elif mode is ssl.CERT_NONE and "client_ca_file" in tls:
            self.faults.append(f"{where}: expected client_auth_type beside client_ca_file: RequireAndVerifyClientCert")
        if tls.get("client_allowed_sans") and mode is not ssl.CERT_REQUIRED:
            self.faults.append(f"{where}: client_allowed_sans expects client_auth_type: RequireAndVerifyClientCert")
        if "client_ca_file" in tls:
            self._load("client_ca_file", lambda: context.load_verify_locations(tls["client_ca_file"]),
                       str(tls["client_ca_file"]))  # fmt: skip
            context.verify_mode = mode
        return context

    def _load(self, key: str, load: Callable[[], None], files: str) -> None:
        try:
            load()
        except OSError as error:  # ssl.SSLError too
            reason = error.reason.lower().replace("_", " ") if isinstance(error, ssl.SSLError) and error.reason else ""
            line = self._lines[f"tls_server_config.{key}"]
            self.faults.append(f"{self._path}:{line}: {key}: {files}: {reason or error.strerror or 'not PEM'}")

    def _table(self, node: yaml.Node, name: str, readers: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        if not _is_mapping(node):
            self._fault(node, name, f"expected settings under it: {', '.join(readers)}")
            return {}
        found: dict[str, Any] = {}
        for key, value in _pairs(node):
            inner = f"{name}.{key.value}" if name else str(key.value)
            if key.value not in readers:
                self._fault(key, inner, f"no such setting: {suggestion(str(key.value), readers)}")
            elif key.value in found:
                self._fault(key, inner, "given twice")
            else:
                self._lines[inner] = key.start_mark.line + 1
                found[key.value] = readers[key.value](value, inner)
        return found

    def _text(self, node: yaml.Node, name: str) -> str:
        text = getattr(node, "value", None)
        if not isinstance(text, str) or any(ord(character) < 32 for character in text):
            self._fault(node, name, "expected one line of text")
            return ""
        return text

    def _texts(self, node: yaml.Node, name: str) -> list[str]:
        if type(node).__name__ != "SequenceNode":
            self._fault(node, name, "expected a list")
            return []
        return [self._text(each, name) for each in node.value]

    def _file(self, node: yaml.Node, name: str) -> Path:
        # As in the toolkit: relative to the directory of this file.
        text = self._text(node, name)
        if not text:
            self._fault(node, name, "expected a path")
        return self._path.parent / text

    def _truth(self, node: yaml.Node, name: str) -> bool:
        text = self._text(node, name).lower()
        if text not in ("true", "false"):
            self._fault(node, name, "expected true or false")
        return text == "true"

    def _one_of(self, words: Collection[str]) -> Callable[[yaml.Node, str], str]:
        def read(node: yaml.Node, name: str) -> str:
            text = self._text(node, name)
            if text not in words:
                self._fault(node, name, f"{text!r}: expected one of {', '.join(word for word in words if word)}")
                return next(iter(words))
            return text

        return read

    def _ciphers(self, node: yaml.Node, name: str) -> list[str]:
        texts = self._texts(node, name)
        for text in texts:
            if text not in _CIPHERS:
                self._fault(node, name, f"{text!r}: expected some of {', '.join(_CIPHERS)}")
        return [text for text in texts if text in _CIPHERS]

    def _fault(self, node: yaml.Node, name: str, words: str) -> None:
        place = f"{self._path}:{node.start_mark.line + 1}"
        self.faults.append(f"{place}: {name}: {words}" if name else f"{place}: {words}")


def _is_mapping(node: yaml.Node) -> bool:
    return type(node).__name__ == "MappingNode"


def _pairs(node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    return iter(node.value) if _is_mapping(node) else iter(())
