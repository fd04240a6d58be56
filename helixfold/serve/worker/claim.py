"""A job as the server describes it to the worker that claims it; the worker believes none of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from data_pipeline.errors import InputError
from helixfold.serve.submission import MAX_FILES, MAX_SEQUENCE_TEXT, JobOptions
from helixfold.serve.transfer import checked_input_name

_ID = re.compile(r"[0-9a-f]{32}")
_LEASE = re.compile(r"[A-Za-z0-9_-]{1,100}")
_LONGEST_LEASE = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed job, and the lease under which the worker has it."""

    id: str
    lease: str
    lease_seconds: float
    kind: str
    request: Mapping[str, Any]

    @classmethod
    def of(cls, content: Any) -> Self:
        """Return the claim in an answer of the server. Raise `InputError` if it is not one."""
        match content:
            case {
                "id": str(job),
                "lease": str(lease),
                "lease_seconds": int(seconds) | float(seconds),
                "kind": "prediction" | "alignment" as kind,
                "request": dict(request),
            } if _ID.fullmatch(job) and _LEASE.fullmatch(lease) and 0 < seconds <= _LONGEST_LEASE:
                return cls(id=job, lease=lease, lease_seconds=seconds, kind=kind, request=request)
        raise InputError("the server sent something other than a job; is it helixfold serve, of this version?")

    def inputs(self) -> list[str]:
        """Return the names of the uploaded files. Raise `InputError` for a request that no server checks and sends."""
        if self.kind == "alignment":
            return []
        try:
            names = [*self.request["alignments"], *self.request["templates"]]
            words = [self.request["name"], self.request["sequence"], *self.request["chain_ids"]]
            known = {field.name for field in fields(JobOptions)}
            JobOptions(**{name: value for name, value in self.request["options"].items() if name in known})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the server sent a request that is incomplete, or has a wrong type: {error}") from error
        if not all(isinstance(word, str) and len(word) <= MAX_SEQUENCE_TEXT for word in words):
            raise InputError("the server sent a request whose sequence, name or chain IDs are too long, or not text")
        if len(names) > MAX_FILES:
            raise InputError(f"the server names {len(names)} uploaded files; a job has at most {MAX_FILES}")
        return [checked_input_name(name) for name in names]
