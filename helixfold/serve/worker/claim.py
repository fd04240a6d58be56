"""A job as the server describes it to the worker that claims it; the worker believes none of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from data_pipeline.errors import InputError
from helixfold.serve.alignment_request import AlignmentRequest
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

    def checked_request(self) -> dict[str, Any]:
        """Return what a worker reads of the request. Raise `InputError` for one that no server would have accepted."""
        request = self.request
        try:
            if self.kind == "alignment":
                return AlignmentRequest.from_dict(dict(request)).to_dict()
            known = {field.name for field in fields(JobOptions)}
            options = {name: value for name, value in request["options"].items() if name in known}
            texts = [request["name"], request["sequence"], *request["chain_ids"]]
            files = {name: [checked_input_name(each) for each in request[name]] for name in ("alignments", "templates")}
            is_right = all(isinstance(text, str) and len(text) <= MAX_SEQUENCE_TEXT for text in texts) and all(
                isinstance(value, str | int | None) for value in options.values()
            )
            if not is_right or sum(map(len, files.values())) > MAX_FILES:
                raise TypeError("its values or their number")
            return {
                "name": request["name"],
                "sequence": request["sequence"],
                "chain_ids": list(request["chain_ids"]),
                "options": JobOptions(**options).to_dict(),
                **files,
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the server sent a request that cannot be used: {error}") from error
