"""The attacks of bench/hostile.py, each in processes of another user: `hostile_attacks.py NAME SOCKET PORT SECONDS …`.

Bytes are prepared before the attack and sent unchanged, so that attacking costs less than being attacked. Each process
drops root, stays on the attackers' core, and prints its results as one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import select
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

RETRY_SECONDS = 0.1
TURN_SECONDS = 0.005
"""The pause between two polls of all sockets of a process."""

CONNECT_SECONDS = 0.001
"""The pause after each connect of a held connection: those that overflow the kernel's queue are not held."""

WITNESS_UID, WITNESS_RUN = 1234, "witness"
WITNESS = f"uid:{WITNESS_UID}/{WITNESS_RUN}"
"""The run that attacks aim at, by its name on the exporter's page: its user has no name here."""

Achieved = dict[str, float]


@dataclass(frozen=True)
class Target:
    """The target of an attack, and its duration."""

    path: str
    port: int
    seconds: float

    def unix(self) -> socket.socket | None:
        """Return a connection to the ranks' socket, None while the kernel's queue is full."""
        return _connected(socket.AF_UNIX, self.path)

    def tcp(self) -> socket.socket | None:
        """Return a connection to the HTTP port, which may not be established yet."""
        return _connected(socket.AF_INET, ("127.0.0.1", self.port))


@dataclass(frozen=True)
class Attack:
    """One attack: its description, its work in each process, and the users of those processes."""

    words: str
    work: Callable[[Target], Achieved]
    uids: tuple[int, ...] = (65534,)
    seconds: float = 20.0


class Client:
    """A client that sends its `messages` in turn, `hz` per second, and reconnects when it is disconnected."""

    def __init__(
        self, connect: Callable[[], socket.socket | None], first: bytes, messages: Sequence[bytes], hz: float,
        *, reads: bool = True,
    ) -> None:  # fmt: skip
        self._connect, self._first, self._messages, self._hz, self._reads = connect, first, messages, hz, reads
        self._next = itertools.cycle(messages)
        self._socket: socket.socket | None = None
        self._unsent = memoryview(b"")
        self._due = 0.0
        self.sent = self.connects = 0

    def turn(self, now: float) -> None:
        """Send what is due at `now`."""
        if self._socket is None:
            if now < self._due:
                return
            self._due = now + RETRY_SECONDS
            self._socket = self._connect()
            if self._socket is None:
                return
            self.connects += 1
            self._unsent, self._due = memoryview(self._first), now
        try:
            if self._reads:
                self._drain(self._socket)
            if not self._unsent and self._messages and now >= self._due:
                self._unsent = memoryview(next(self._next))
                self._due = max(self._due + 1 / self._hz, now - 1.0)
                self.sent += 1
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._socket.close()
            self._socket, self._due = None, now + RETRY_SECONDS

    def _drain(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            if not sock.recv(262144):
                raise ConnectionError


def _connected(family: socket.AddressFamily, address: str | tuple[str, int]) -> socket.socket | None:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.connect(address)
    except BlockingIOError:
        if family == socket.AF_UNIX:
            sock.close()
            return None
    except OSError:
        sock.close()
        return None
    return sock


def _line(**fields: object) -> bytes:
    return json.dumps({"v": 1, **fields}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _hello(run: str, rank: int, **fields: object) -> bytes:
    return _line(type="hello", run=run, rank=rank, **fields)


def _state(metrics: object = None, **fields: object) -> bytes:
    return _line(type="state", seq=1, time=1.0, step=1, metrics=metrics or {}, **fields)


def _drive(clients: Sequence[Client], target: Target, what: str = "frames/s") -> Achieved:
    end = time.monotonic() + target.seconds
    while (now := time.monotonic()) < end:
        for client in clients:
            client.turn(now)
        time.sleep(TURN_SECONDS)
    return {
        "clients": len(clients),
        what: sum(client.sent for client in clients) / target.seconds,
        "connects": sum(client.connects for client in clients),
    }


def _hold(connects: Sequence[Callable[[], socket.socket | None]], target: Target, dripped: bytes = b"") -> list[int]:
    """Keep one connection of each kind open, sending one byte of `dripped` per second; return the open ones."""
    held: list[socket.socket | None] = [None] * len(connects)
    begin = time.monotonic()
    seconds = 0
    while time.monotonic() < begin + target.seconds:
        for position, connect in enumerate(connects):
            sock = held[position]
            if sock is not None and _is_closed(sock):
                sock.close()
                sock = held[position] = None
            if sock is None:
                held[position] = connect()
                time.sleep(CONNECT_SECONDS)
            elif dripped:
                with contextlib.suppress(OSError):
                    sock.send(dripped[seconds % len(dripped) :][:1])
        seconds += 1
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
    return [position for position, sock in enumerate(held) if sock is not None and not _is_closed(sock)]


def _is_closed(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not any(events & (select.POLLHUP | select.POLLERR | select.POLLIN) for _, events in poll.poll(0)):
        return False
    try:
        return not sock.recv(65536)
    except BlockingIOError:
        return False
    except OSError:
        return True


def none(target: Target) -> Achieved:
    """Do nothing, to measure the cost of the bench itself."""
    time.sleep(target.seconds)
    return {}


def idle(target: Target) -> Achieved:
    """Hold 512 connections to the socket and 1,100 to the port without sending anything."""
    open_ones = _hold([target.unix] * 512 + [target.tcp] * 1100, target)
    return {"unix held": sum(each < 512 for each in open_ones), "TCP held": sum(each >= 512 for each in open_ones)}


def slowloris(target: Target) -> Achieved:
    """Send 1,100 requests at one byte per second."""
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 4096
    return {"TCP held": len(_hold([target.tcp] * 1100, target, request))}


def wide(target: Target) -> Achieved:
    """Send frames of 56 KB with 6,300 labels, as often as a rank may."""
    labels = {f"{i:x}": 1 for i in range(6300)}
    frame = json.dumps(
        {"v": 1, "type": "state", "seq": 1, "time": 1.0, "metrics": {"collective_enqueued": labels}},
        separators=(",", ":"),
    ).encode() + b"\n"  # fmt: skip
    return _drive([Client(target.unix, _hello("wide", i), [frame], 10.0) for i in range(62)], target)


def malformed(target: Target) -> Achieved:
    """Send lines that are refused: long, nested, truncated, of wrong types."""
    lines = [
        b"[" * 60_000, b'{"v":1,"type":"state","metrics":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"v":1,"type":"hello","run":"' + b"a" * 50_000 + b'","rank":0}', b"\xff" * 4000, b"1" * 60_000,
        b'{"v":' + b"9" * 4000 + b"}", b'{"v":1,"type":"state","seq":"x"}', b"x" * 70_000, b"{}", b"",
    ]  # fmt: skip
    messages = [line + b"\n" for line in lines]
    return _drive([Client(target.unix, b"", messages, 20.0) for _ in range(60)], target)


def reconnect(target: Target) -> Achieved:
    """Connect, send hello as one of eight ranks and close, 24,000 times in 14 s."""
    hellos = [_hello("storm", i) for i in range(8)]
    done = _storm(target, itertools.cycle([[hello] for hello in hellos]), 24_000 / 14)
    return {"connects/s": done / target.seconds}


def runs(target: Target) -> Achieved:
    """Send hello and bye of 27,000 made-up runs per second, 50 per connection."""
    bye = _line(type="bye", outcome="finished")

    def batches() -> Iterator[list[bytes]]:
        for batch in itertools.count():
            names = range(batch * 50, batch * 50 + 50)
            yield [b'{"v":1,"type":"hello","run":"made-up-%d","rank":0}\n' % name + bye for name in names]

    return {"hellos/s": 50 * _storm(target, batches(), 27_000 / 50) / target.seconds}


def _storm(target: Target, batches: Iterator[list[bytes]], hz: float) -> int:
    """Connect, send a batch and close, at most `hz` times per second; return the number of connections."""
    begin = time.monotonic()
    done = 0
    while (now := time.monotonic()) < begin + target.seconds:
        if done > (now - begin) * hz or (sock := target.unix()) is None:
            time.sleep(0.001)
            continue
        with sock, contextlib.suppress(OSError):
            sock.send(b"".join(next(batches)))
        done += 1
    return done


def flood(target: Target) -> Achieved:
    """Send 10,000 frames per second on one connection."""
    batch = _state({"tokens_total": 1}) * 100
    done = _drive([Client(target.unix, _hello("flood", 0), [batch], 100.0)], target, "batches/s")
    return {"frames/s": 100 * done["batches/s"]}


def immortal(target: Target) -> Achieved:
    """Send hello, then hello with a precision of 10^400, as each of 64 ranks, every second."""
    begin, rounds, done = time.monotonic(), 0, 0
    while time.monotonic() < begin + target.seconds:
        for i in range(64):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(0.5)
                sock.connect(target.path)
                sock.sendall(_hello("e", i))
                sock.recv(4096)
                sock.sendall(_hello("e", i, facts={"precision": 10**400}))
                done += 1
            if time.monotonic() > begin + target.seconds:
                break
        rounds += 1
        time.sleep(max(0.0, min(begin + rounds, begin + target.seconds) - time.monotonic()))
    return {"hellos/s": 2 * done / target.seconds}


def hoard(target: Target) -> Achieved:
    """Run 64 ranks of one user, each with one state per second."""
    clients = [Client(target.unix, _hello("hoard", i), [_state({"tokens_total": 1})], 1.0) for i in range(64)]
    return _drive(clients, target)


def names(target: Target) -> Achieved:
    """Use names of runs, layers, facts and jobs that a page or a terminal may not tolerate."""
    odd = [
        "訓" * 100, "𝕏" * 128, "é" * 128, "\x1b[2J\x1b[31mrun", "a\nb", 'a"} 1\nfake_metric{x="', "\\", "\u202erun",
        "\u2028", "\x7f", "\ud800", " ", "\u200b", "<!channel>",
    ]  # fmt: skip
    layers = {text[:64] * (64 // len(text[:64])): 1.0 for text in odd}
    job = {"job_id": "訓" * 128, "pod": "𝕏" * 128}
    state = _state({"layer_grad_norm": layers, "collective_enqueued": layers})
    clients = []
    for i, run in enumerate(odd):
        facts = {"precision": "𝕏" * 64, "tier": run}
        hello = _hello(run, i, facts=facts, job=job, uuid="訓" * 128)
        clients.append(Client(target.unix, hello, [state], 2.0))
        clients.append(Client(target.unix, _hello("plain", i, facts=facts, job=job, uuid=run), [state], 2.0))
    return _drive(clients, target)


def series(target: Target) -> Achieved:
    """Report 256 series for each of 64 ranks."""
    labels = {f"label-{i}": i + 0.123456789 for i in range(32)}
    free = ("collective_enqueued", "collective_completed", "layer_grad_norm", "layer_grad_ratio",
            "layer_activation_rms", "layer_activation_zero_ratio", "layer_memory_peak_bytes", "invariant")  # fmt: skip
    state = _state(dict.fromkeys(free, labels))
    return _drive([Client(target.unix, _hello("series", i), [state], 1.0) for i in range(64)], target)


def unread(target: Target) -> Achieved:
    """Send requests and never read the answers: refused lines on the socket, pages on the port."""
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: identity\r\n\r\n"
    clients = [Client(target.unix, b"", [b'{"v":2}\n' * 50], 20.0, reads=False) for _ in range(64)]
    clients += [Client(target.tcp, b"", [request * 20], 5.0, reads=False) for _ in range(64)]
    return _drive(clients, target, "batches/s")


def scrapes(target: Target) -> Achieved:
    """Scrape on 16 connections, 100 times per second on each."""
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
    return _drive([Client(target.tcp, b"", [request], 100.0) for _ in range(16)], target, "requests/s")


def http_garbage(target: Target) -> Achieved:
    """Send malformed requests to the port, a thousand per second."""
    garbage = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x00" * 2000, b"\r\n" * 2000,
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nabc", b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(500)) + b"\r\n", b"PRI * HTTP/2.0\r\n\r\n",
    ]  # fmt: skip
    begin = time.monotonic()
    done = 0
    lingering: list[socket.socket] = []
    for message in itertools.cycle(garbage):
        now = time.monotonic()
        if now > begin + target.seconds:
            break
        if (sock := target.tcp()) is not None:
            with contextlib.suppress(OSError):
                sock.send(message)
            lingering.append(sock)
            done += 1
        if len(lingering) > 100:
            lingering.pop(0).close()
        time.sleep(max(0.0, begin + done / 1000 - time.monotonic()))
    return {"requests/s": done / target.seconds}


def churn(target: Target) -> Achieved:
    """Leave and come back under 32 new names of runs every second, with 40 series each."""
    state = _state({key: dict.fromkeys(map(str, range(20)), 1) for key in ("collective_enqueued", "invariant")})
    begin, rounds = time.monotonic(), 0
    while time.monotonic() < begin + target.seconds:
        held = []
        for number in range(32):
            if (sock := target.unix()) is not None:
                with contextlib.suppress(OSError):
                    sock.send(_hello(f"churn-{rounds}-{number}", 0) + state)
                held.append(sock)
        rounds += 1
        time.sleep(max(0.0, begin + rounds - time.monotonic()))
        for sock in held:
            sock.close()
    return {"new names/s": 32 * rounds / target.seconds}


def silent(target: Target) -> Achieved:
    """Say hello as 62 ranks from a process of 600 threads, and nothing more."""
    idle_threads = threading.Event()
    threads = [threading.Thread(target=idle_threads.wait, args=(target.seconds,)) for _ in range(600)]
    for thread in threads:
        thread.start()
    stacks = {"training": threading.get_native_id(), "sending": threads[-1].native_id}
    clients = [Client(target.unix, _hello("silent", i, pid=os.getpid(), stacks=stacks), [], 1.0) for i in range(62)]
    done = _drive(clients, target)
    for thread in threads:
        thread.join()
    return {"silent": done["clients"], "threads": len(threads)}


def claims(target: Target) -> Achieved:
    """Say hello with the names, GPUs and tiers of others, from 62 connections."""
    gpus = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(8)]
    clients = [
        Client(
            target.unix,
            _hello(run, i, uuid=gpus[i % 8], facts={"tier": "dev"}, world_size=62),
            [_state({"threshold": {"hang_seconds": 86400.0}})],
            1.0,
        )
        for i, run in enumerate([WITNESS_RUN, "0d4f5f6e-0000-4000-8000-000000000000"] * 31)
    ]
    return _drive(clients, target)


def boxes(target: Target) -> Achieved:
    """Fill the exporter's memory of black boxes as 62 ranks, and ask for pages and captures of the witness's run."""
    text = json.dumps({"rank": 0, "log": ["x" * 200] * 150})
    part = _line(type="box", id=1, part=0, parts=1, time=1.0, reason="made up", text=text)
    clients = [Client(target.unix, _hello("boxes", i), [part], 1.0) for i in range(62)]
    run = urllib.parse.quote(WITNESS, safe="")
    page = f"GET /blackbox/{run} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    ask = f"POST /api/blackbox/{run}/capture HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
    readers = [Client(target.tcp, b"", [page, ask], 2.0) for _ in range(12)]
    return _drive([*clients, *readers], target, "boxes, pages/s")


SEVERAL = tuple(range(20_001, 20_005))
ATTACKS = {
    "none": Attack("no attack", none),
    "idle": Attack("512 unix + 1,100 TCP connections that say nothing", idle),
    "wide": Attack("62 clients, frames of 56 KB with 6,300 labels", wide),
    "malformed": Attack("60 clients, malformed frames", malformed),
    "reconnect": Attack("24,000 connects in 14 s: hello, close", reconnect, seconds=14.0),
    "runs": Attack("27,000 made-up runs a second", runs),
    "flood": Attack("10,000 frames/s from one client", flood),
    "immortal": Attack("a hello with a precision of 10^400, 64 connections", immortal),
    "hoard": Attack("64 ranks of one user", hoard),
    "names": Attack("names beyond 256 bytes, and unprintable ones", names),
    "series": Attack("64 ranks × 256 series", series),
    "slowloris": Attack("1,100 TCP connections, a header byte a second", slowloris),
    "unread": Attack("64 + 64 clients that never read the answers", unread),
    "scrapes": Attack("16 connections, each 100 scrapes a second", scrapes),
    "http-garbage": Attack("1,000 malformed requests a second", http_garbage),
    "churn": Attack("32 new names of runs a second, 40 series each", churn),
    "silent": Attack("62 silent ranks of a process of 600 threads", silent),
    "claims": Attack("62 ranks that claim others' names, GPUs and tiers", claims),
    "boxes": Attack("62 boxes a second, 12 readers of another's black box", boxes),
    "wide-users": Attack("62 clients of wide frames from each of 4 users", wide, uids=SEVERAL),
}


def become(uid: int, core: int | None) -> None:
    """Stay on one core, raise the limit of descriptors, and drop root permanently."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def main() -> None:
    """Run the attack and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(ATTACKS))
    parser.add_argument("socket")
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--uid", type=int, required=True)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    become(options.uid, options.core)
    achieved = ATTACKS[options.name].work(Target(options.socket, options.port, options.seconds))
    sys.stdout.write(json.dumps(achieved) + "\n")


if __name__ == "__main__":
    main()
