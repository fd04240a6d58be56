"""Jobs of searches for other programs, one for each different request, whoever asks."""

import hashlib
import json
from dataclasses import asdict

from fastapi import HTTPException

from helixfold.serve.alignment_request import AlignmentRequest
from helixfold.serve.queue.jobs import Job, NewJob
from helixfold.serve.service import Service, User


def submit_alignment(service: Service, asked: AlignmentRequest, user: User) -> Job:
    """Return the job of a request: that of an equal one, if its result is still there, or a new one.

    Answer 501 if no worker searches databases for other programs.
    """
    offers = service.offers()
    if offers and not any(worker.alignments for worker in offers):
        raise HTTPException(501, "this service has no ColabFold databases")
    job_id = asked.job_id(service.storage.secret())
    earlier = service.views.job(job_id)
    if earlier is not None and earlier.state in ("failed", "cancelled", "expired"):
        again = service.queue.again(job_id, user.name)
        service.audit.add(user.name, user.address, "retry", job_id)
        service.waiting_jobs.changed()
        return again
    if earlier is not None:
        return earlier
    content = asdict(asked)
    new = NewJob(
        id=job_id,
        user=user.name,
        address=user.address,
        kind="alignment",
        name=f"{asked.kind} {asked.mode}".strip(),
        request=content,
        request_digest=hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        residues=asked.residues,
    )
    return service.enqueue(new)[0]
