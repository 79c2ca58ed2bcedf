"""The routes: from a request to rows, to a question, to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tabmoco.config import Space
from tabmoco.errors import TabmocoError
from tabmoco.serve.batcher import Batcher, Job
from tabmoco.serve.examples import describe_rows, example_row
from tabmoco.serve.guard import Guard
from tabmoco.serve.limits import Limits
from tabmoco.serve.live import Generation, Live
from tabmoco.serve.metrics import Metrics
from tabmoco.serve.questions import Embed, Question, Score, Search
from tabmoco.serve.refusals import ClientGone, RequestError, busy, error_bytes, json_bytes
from tabmoco.serve.rows_in import ARROW, JSON, Rows, read_rows
from tabmoco.serve.rows_out import write_rows

Result = TypeVar("Result")

ROUTES = (
    "/score",
    "/explain",
    "/search",
    "/embed",
    "/schema",
    "/health",
    "/metrics",
    "/reload",
    "/docs",
    "/openapi.json",
)
ASKING = ROUTES[:4]
"""Routes that take rows."""

N_READERS = 2
"""Threads that read requests and write answers; each holds one request's rows beside their JSON."""

Fpr = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False, description="Share of normal rows to flag.")]
Fdr = Annotated[
    float | None,
    Query(ge=0, le=1, allow_inf_nan=False, description="Instead: share of normal rows among those flagged."),
]
Explain = Annotated[
    Literal["false", "true", "all"],
    Query(description="Add the cells that make rows strange: of the strangest tenth, or of all rows."),
]
TopCells = Annotated[int, Query(ge=1, le=1_000, description="Cells to name for each row.")]
Neighbours = Annotated[int, Query(ge=1, le=10_000, description="Similar rows to find for each row.")]
InSpace = Annotated[
    Space,
    Query(description="The embedding, for search and maps; or what each cell is expected to hold, for classifiers."),
]
IdColumn = Annotated[str | None, Query(description="Column that names the rows; that of training by default.")]


def build_app(
    live: Live,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] | None = None,
    watch: bool = False,
) -> FastAPI:
    """The service as an ASGI application.

    Parameters
    ----------
    token, hosts
        Who may ask; see `Guard`.
    watch
        Whether to look for another model in the directory by itself.
    """
    limits = Limits() if limits is None else limits
    metrics = Metrics()
    batcher = Batcher(limits, see=metrics.see_call)
    metrics.watch(live, batcher)

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        watching = asyncio.create_task(live.watch()) if watch else None
        yield
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title="tabmoco",
        description="Embeddings, anomaly scores with their causes, and similar rows, of rows given as JSON or Arrow.",
        lifespan=running,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(
        Guard,
        live=live,
        limits=limits,
        metrics=metrics,
        token=token,
        hosts=hosts,
        routes=ROUTES,
    )
    app.add_exception_handler(RequestValidationError, _refuse_options)  # type: ignore[arg-type]
    for status, message in ((404, "there is no such path; /docs has all."), (405, "this path takes another method.")):
        app.add_exception_handler(status, _telling(status, message))
    _add_questions(app, _Desk(batcher, limits), limits)
    _add_facts(app, live, metrics, token=token)
    return app


def _add_questions(app: FastAPI, desk: _Desk, limits: Limits) -> None:
    @app.post("/score", summary="How strange is each row?")
    async def score(
        request: Request,
        fpr: Fpr = None,
        fdr: Fdr = None,
        explain: Explain = "false",
        top_cells: TopCells = 5,
        id_column: IdColumn = None,
    ) -> Response:
        told: dict[str, Any] = {"false": False, "true": True, "all": "all"}
        return await desk.answer(request, Score(fpr, fdr, told[explain], top_cells), id_column)

    @app.post("/explain", summary="Which cells make each row strange, and what was expected there?")
    async def explain(
        request: Request, fpr: Fpr = None, fdr: Fdr = None, top_cells: TopCells = 5, id_column: IdColumn = None
    ) -> Response:
        return await desk.answer(request, Score(fpr, fdr, "all", top_cells), id_column)

    @app.post("/search", summary="Which rows of the training table are most like each row?")
    async def search(request: Request, k: Neighbours = 10, id_column: IdColumn = None) -> Response:
        return await desk.answer(request, Search(k), id_column, max_rows=limits.max_neighbours // k)

    @app.post("/embed", summary="Where does each row lie? A vector of 32-bit floats.")
    async def embed(request: Request, space: InSpace = "embedding", id_column: IdColumn = None) -> Response:
        return await desk.answer(request, Embed(space), id_column)


def _add_facts(app: FastAPI, live: Live, metrics: Metrics, *, token: str | None) -> None:
    @app.get("/schema", summary="What must a row look like?")
    async def schema(request: Request) -> Response:
        return _json(describe_rows(request.scope["generation"]))

    @app.get("/health", summary="Is the service up?")
    async def health(request: Request) -> Response:
        return _json({"status": "ok", "model": request.scope["generation"].fingerprint})

    @app.get("/metrics", summary="Figures for Prometheus.")
    async def figures() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/reload", summary="Load the model directory anew; needs a token.")
    async def reload(request: Request) -> Response:
        if token is None:
            raise RequestError(403, "reloading needs a token; start with --token-file, or with --watch instead.")
        try:
            is_new = await live.reload()
        except TabmocoError as error:
            raise RequestError(409, f"the model stays the old one: {error}") from error
        generation = request.scope["generation"] = live.current
        told = {"model": generation.fingerprint, "schema": generation.schema_version, "is_new": is_new}
        return _json(told)

    @app.get("/openapi.json", include_in_schema=False)
    async def described(request: Request) -> Response:
        return _json(_openapi(app, request.scope["generation"]))

    page = files("tabmoco.serve").joinpath("docs_page.html").read_text(encoding="utf-8")
    rules = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": f"{rules}; frame-ancestors 'none'"})


class _Desk:
    """Where requests become jobs, and answers become responses."""

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self._batcher = batcher
        self._limits = limits
        self._readers = ThreadPoolExecutor(N_READERS, thread_name_prefix="tabmoco-rows")

    async def answer(
        self, request: Request, question: Question, id_column: str | None, *, max_rows: int | None = None
    ) -> Response:
        _refuse_unknown_options(request)
        media_type = _media_type(request)
        body = await _read_body(request, self._limits.max_body_bytes)
        generation: Generation = request.scope["generation"]
        rows: Rows = await self._aside(read_rows, body, media_type, generation.model, self._limits, id_column)
        if max_rows is not None and len(rows) > max_rows:
            raise RequestError(413, f"with this k a request must have at most {max_rows:,} rows, got {len(rows):,}.")
        answer = self._batcher.submit(Job(question, generation.model, rows.table))
        table = await _awaited(answer, request, self._limits.answer_seconds)
        content = await self._aside(write_rows, table, rows, media_type)
        request.scope["n_rows"] = len(rows)
        return Response(content, media_type=media_type)

    async def _aside(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)


def _media_type(request: Request) -> str:
    """The form of the rows, which is that of the answer."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(415, f"the body must not be compressed, got {encoding!r}; send it as it is.")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (JSON, ARROW):
        raise RequestError(415, f"the content-type must be {JSON} or {ARROW}, got {media_type!r}.")
    return media_type


def _refuse_unknown_options(request: Request) -> None:
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise RequestError(400, f"there is no option {name!r} here; there are {', '.join(known)}.")


async def _read_body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    too_large = RequestError(413, f"the body must have at most {max_bytes:,} bytes; send the rows in pieces.")
    if not declared.isdecimal() or int(declared[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


async def _awaited(answer: Future[pa.Table], request: Request, seconds: float) -> pa.Table:
    """The answer; if that takes too long or the client hangs up first, it is not computed unless it is already."""
    waiting = asyncio.ensure_future(asyncio.wrap_future(answer))
    hanging_up = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({waiting, hanging_up}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if hanging_up.done():
            raise ClientGone
        raise busy(f"there was no answer within {seconds:g} seconds; send fewer rows, or try again later.")
    finally:
        hanging_up.cancel()
        waiting.cancel()


async def _refuse_options(request: Request, error: RequestValidationError) -> Response:
    found = error.errors()[0]
    name = found["loc"][-1]
    message = f"the option {name} does not fit: {found['msg']}, got {str(found['input'])!r}."
    return Response(error_bytes(message), 400, media_type=JSON)


def _telling(status: int, message: str) -> Callable[[Request, Exception], Any]:
    async def tell(request: Request, error: Exception) -> Response:
        return Response(error_bytes(message), status, headers=getattr(error, "headers", None), media_type=JSON)

    return tell


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type=JSON)


def _openapi(app: FastAPI, generation: Generation) -> dict[str, Any]:
    """The description of all routes, with a row of the model's columns as the example, under the schema's version."""
    version = generation.schema_version
    described = get_openapi(title=app.title, version=version, description=app.description, routes=app.routes)
    example = {"rows": [example_row(generation)]}
    columns: dict[str, Any] = {name: {} for name in example["rows"][0]}
    row = {"type": "object", "properties": columns, "required": [c.name for c in generation.model.schema.used]}
    body = {
        "required": True,
        "content": {
            JSON: {
                "schema": {"type": "object", "properties": {"rows": {"type": "array", "items": row}}},
                "example": example,
            },
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    }
    for route in ASKING:
        described["paths"][route]["post"]["requestBody"] = body
    return described
