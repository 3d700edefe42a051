"""The names of users, looked up in threads: a name service may take long, or never answer."""

from __future__ import annotations

import pwd
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tachograph.wire import fits

MAX_USERS = 1024
"""Users who are remembered; of more, those without ranks are forgotten first."""

MAX_OWNER_BYTES = 64
"""Of a user's name; one with a longer name is shown by its uid."""

PATIENCE_SECONDS = 1.0
"""How long a first hello waits for the name of its user, who is shown by the uid after that."""

RETRY_SECONDS = 300.0
"""After this time a user without a name is looked up again, unless it has ranks: a run keeps its name."""

MAX_LOOKUPS = 16
"""Lookups under way at once; users beyond it are shown by their uids."""


def user_name(user: int | str) -> str | None:
    """Return the name of a user, given by uid or name, as this machine knows it; None if it has none."""
    try:
        return (pwd.getpwnam(user) if isinstance(user, str) else pwd.getpwuid(user)).pw_name or None
    except (KeyError, OverflowError, OSError, ValueError):  # the last for a name that has no encoding
        return None


HasRanks = Callable[[int | str], bool]
"""Whether a user has ranks, by uid; or a run, by name."""


@dataclass
class _User:
    asked: float
    name: str | None = None
    answered: threading.Event = field(default_factory=threading.Event)
    lookup: threading.Thread | None = None
    shown: str = ""


class UserNames:
    """Says how each user is shown, and never otherwise while that user has ranks: by name, or as `uid:165600`.

    No name can be taken for another: one with a colon or a slash, which no system allows, is replaced by the uid.
    A user may be asked for by name instead of the uid: is there one?
    """

    def __init__(self, lookup: Callable[[int | str], str | None] = user_name) -> None:
        self._lookup = lookup
        self._users: dict[int | str, _User] = {}
        self._lookups: list[threading.Thread] = []
        self.refused: set[int] = set()
        """Users whose names were not looked up, for too many others were; whoever counts them empties it."""

    def is_awaited(self, uid: int | str, has_ranks: HasRanks) -> bool:
        """Return whether a user's name is being looked up and may still come; the first call starts that."""
        user = self._user(uid, has_ranks)
        return not (user.shown or user.answered.is_set() or _left(user) <= 0)

    def may_be(self, name: str, has_ranks: HasRanks) -> bool:
        """Return whether a user has this name, and so it may be where nobody knows; it waits as `shown` does."""
        user = self._user(name, has_ranks)
        if not user.shown:
            user.answered.wait(max(_left(user), 0.0))
            user.shown = "uid:" if user.answered.is_set() and user.name is None else name
        return user.shown == name

    def shown(self, uid: int, has_ranks: HasRanks) -> str:
        """Return how a user is shown; it waits for what `is_awaited` reports."""
        user = self._user(uid, has_ranks)
        if not user.shown:
            user.answered.wait(max(_left(user), 0.0))
            user.shown = user.name if user.name and _is_plain(user.name) else f"uid:{uid}"
        return user.shown

    def _user(self, uid: int | str, has_ranks: HasRanks) -> _User:
        user, now = self._users.get(uid), time.monotonic()
        if user is not None and user.shown.startswith("uid:") and now - user.asked > RETRY_SECONDS:
            user = user if has_ranks(uid) else None
        if user is None:
            user = self._users[uid] = _User(now)
            if len(self._users) > MAX_USERS:
                del self._users[next((one for one in self._users if not has_ranks(one)), next(iter(self._users)))]
        if user.lookup is None and not user.shown:
            self._lookups = [one for one in self._lookups if one.is_alive()]
            if len(self._lookups) < MAX_LOOKUPS:
                user.lookup = threading.Thread(target=self._look_up, args=(uid, user), name="user name", daemon=True)
                user.lookup.start()
                self._lookups.append(user.lookup)
            elif isinstance(uid, int):
                self.refused.add(uid)
        return user

    def _look_up(self, uid: int | str, user: _User) -> None:
        try:
            user.name = self._lookup(uid)
        finally:
            user.answered.set()


def _is_plain(name: str) -> bool:
    return fits(name, MAX_OWNER_BYTES) and not {"/", ":"} & set(name)


def _left(user: _User) -> float:
    return user.asked + PATIENCE_SECONDS - time.monotonic()
