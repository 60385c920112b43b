"""Making sandboxes: the key's slot, the record, the image, the launch; synchronous, run in a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchard.core.errors import Conflict, CreateFailed, DeadlineExceeded, NotFound, Unsupported
from orchard.core.ids import new_id
from orchard.sandbox.local.cgroups import Cgroups
from orchard.sandbox.local.ending import Endings
from orchard.sandbox.local.images import DEFAULT_PATH, Image
from orchard.sandbox.local.launch import Launch
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.process import boot_id
from orchard.sandbox.local.records import KeySlot, Record, Store, now, plain_spec
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.local.toolmounts import find_tools
from orchard.sandbox.toolnames import with_tools
from orchard.sandbox.types import DEFAULT_PIDS, SandboxSpec, State

_KEY_WAIT = 900.0
"""Seconds for which a create waits for another one under the same key."""


class Maker:
    """Makes sandboxes of one home."""

    def __init__(
        self,
        settings: LocalSettings,
        store: Store,
        powers: Powers,
        cgroups: Cgroups | None,
        fetch: Callable[[str], Image],
    ) -> None:
        self._settings, self._store, self._powers, self._cgroups = settings, store, powers, cgroups
        self._fetch = fetch
        self._endings = Endings(settings, store, powers, cgroups)
        self._boot = boot_id()
        self._turns = threading.Semaphore(settings.launches)

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what this machine or backend cannot do, before anything is made.

        Raises:
            Unsupported: by name.
            CreateFailed: unschedulable: more than this machine has; tool_not_found.
        """
        if spec.network != "none":
            raise Unsupported("network='open' is not offered by the local backend", hint="use network='none'")
        if spec.disk is not None:
            raise Unsupported("disk limits are not offered by the local backend", hint="leave disk out")
        find_tools(spec.tools)
        self._check_size(spec)
        limited = (
            ("cpu", spec.cpu is not None),
            ("memory", spec.memory is not None),
            ("pids", spec.pids != DEFAULT_PIDS),
        )
        have = self._cgroups.controllers if self._cgroups else frozenset[str]()
        for name, asked in limited:
            if asked and name not in have:
                raise Unsupported(
                    f"{name} limits need a control group that we may write to, and this machine gives us none",
                    hint="run as root, or in a delegated scope: systemd-run --user --scope -p Delegate=yes COMMAND",
                )

    def create(self, spec: SandboxSpec, key: str) -> Record:
        """Make a sandbox, or return the one that the key already stands for."""
        deadline = time.monotonic() + _KEY_WAIT
        while True:
            with self._store.key(key) as slot:
                if slot is not None:
                    return self._known(slot, spec) or self._new(slot, spec)
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"another create under the same key has not ended in {_KEY_WAIT:g} s")
            time.sleep(0.02)  # noqa: TID251 — flock has no wait with a deadline

    def _known(self, slot: KeySlot, spec: SandboxSpec) -> Record | None:
        content = slot.content()
        if not content:
            return None
        if content["spec"] != plain_spec(spec):
            raise Conflict("the idempotency key was used for another specification", hint="use a new key")
        try:
            record = self._endings.look(content["sandbox"])
        except NotFound:
            return None
        return record if record.pid else None  # its maker died half-way: the sweep removes it

    def _new(self, slot: KeySlot, spec: SandboxSpec) -> Record:
        sandbox_id = new_id("sb")
        with self._store.new_folder(sandbox_id) as folder:
            record = Record(
                id=sandbox_id, key=slot.name, spec=plain_spec(spec), created_at=now(), boot=self._boot,
                socket=str(self._store.socket(sandbox_id)), state=State.PULLING,
                cgroups=[str(each) for each in self._cgroups.folders(sandbox_id)] if self._cgroups else [],
            )  # fmt: skip
            try:
                self._store.write(record)
                slot.fill(sandbox_id, record.spec)
                return self._start(record, spec, folder)
            except BaseException:
                self._endings.discard(record)
                slot.clear()
                raise

    def _start(self, record: Record, spec: SandboxSpec, folder: Path) -> Record:
        image = self._fetch(spec.image)
        deadline = time.monotonic() + spec.create_timeout
        record = replace(
            record, state=State.STARTING, image_digest=image.digest, layers=[str(layer) for layer in image.layers],
            workdir=spec.workdir or image.workdir or "/", user=image.user if spec.user is None else spec.user,
            env=with_tools({"PATH": DEFAULT_PATH} | dict(image.env) | dict(spec.env), spec.tools),
        )  # fmt: skip
        self._store.write(record)
        if not self._turns.acquire(timeout=spec.create_timeout):
            raise CreateFailed(
                f"its turn to start did not come in {spec.create_timeout:g} s: too many others start",
                reason="start_timeout",
            )
        try:
            process = Launch(
                settings=self._settings, powers=self._powers, cgroups=self._cgroups, spec=spec, record=record,
                image=image, folder=folder, token=self._store.token(record.id),
                timeout=max(0.001, deadline - time.monotonic()),
            ).run()  # fmt: skip
        finally:
            self._turns.release()
        record = replace(
            record, state=State.READY, pid=process.pid, started=process.started,
            expires_at=(datetime.now(UTC) + timedelta(seconds=spec.ttl)).isoformat(),
        )  # fmt: skip
        self._store.write(record)
        return record

    def _check_size(self, spec: SandboxSpec) -> None:
        cpus = os.cpu_count() or 1
        if spec.cpu is not None and spec.cpu > cpus:
            raise CreateFailed(f"cpu={spec.cpu:g}: this machine has {cpus}", reason="unschedulable")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if spec.memory is not None and spec.memory > memory:
            raise CreateFailed(f"memory={spec.memory}: this machine has {memory} bytes", reason="unschedulable")
