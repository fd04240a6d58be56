"""The FastAPI application of the service: all routes, and the middleware in front of them."""

import json
import secrets
from functools import cache
from typing import Final

from fastapi import FastAPI, Response

from helixfold import __version__
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.web import (
    api_colabfold,
    api_esm,
    api_jobs,
    api_nim,
    api_worker,
    page_jobs,
    page_user,
)
from helixfold.apps.serve.web.errors import add_error_answers
from helixfold.apps.serve.web.identity import CurrentUser, Sessions
from helixfold.apps.serve.web.request_limits import RequestLimits
from helixfold.apps.serve.web.response_headers import CONTENT_TYPE, Metrics, ResponseHeaders
from helixfold.apps.serve.web.threads import add_threads

_ROUTERS: Final = (api_jobs, api_worker, api_nim, api_esm, api_colabfold, page_user, page_jobs)


def create_app(service: Service) -> FastAPI:
    """Return the application of a service."""
    app = FastAPI(
        title="helixfold serve",
        version=__version__,
        description="Predict protein structures with AlphaFold 2: submit jobs, watch them, fetch results.",
        openapi_url=None,  # see below
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,  # such redirects lead to the client's Host header
    )
    metrics = Metrics(service)
    app.state.service = service
    app.state.sessions = Sessions(service.storage.secret())
    app.state.worker_token = secrets.token_urlsafe(32)  # for the workers that this server starts
    app.state.connections = {}  # see `TimedProtocol`
    add_threads(app)
    for module in _ROUTERS:
        app.include_router(module.router)
    add_error_answers(app)

    # The description is public. FastAPI would serialize it for each request.
    openapi_json = cache(lambda: json.dumps(app.openapi()))

    @app.get("/api/openapi.json", include_in_schema=False)
    def describe() -> Response:
        """Send the OpenAPI description of the routes."""
        return Response(openapi_json(), media_type="application/json")

    @app.get("/metrics", tags=["service"])
    def show_metrics(user: CurrentUser) -> Response:
        """Send counts of jobs, workers and requests for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    app.add_middleware(RequestLimits, settings=service.settings)
    app.add_middleware(ResponseHeaders, metrics=metrics)
    return app
