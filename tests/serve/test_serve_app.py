"""The service from outside, without a network: answers, refusals, and another model while requests go on."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from rows_as_json import body, records, stream

pytest.importorskip("fastapi", reason="the service needs fastapi, of the extra serve")
pytest.importorskip("httpx", reason="FastAPI's test client needs httpx")
pytest.importorskip("prometheus_client", reason="the service needs prometheus-client, of the extra serve")

from fastapi.testclient import TestClient  # noqa: E402

from tabmoco.errors import ModelFileError  # noqa: E402
from tabmoco.serve.app import build_app  # noqa: E402
from tabmoco.serve.limits import Limits  # noqa: E402
from tabmoco.serve.live import Generation, Live, schema_version  # noqa: E402
from tabmoco.serve.questions import Embed  # noqa: E402
from tabmoco.serve.rows_in import ARROW, JSON  # noqa: E402
from tabmoco.tables.source import open_table  # noqa: E402

TOKEN = "a-token-of-more-than-16"
AS_JSON, AS_ARROW = {"content-type": JSON}, {"content-type": ARROW}


@pytest.fixture
def live(folder):
    return Live(folder, Generation.load(folder))


@pytest.fixture
def client(live):
    with TestClient(build_app(live, Limits(max_rows=500, max_body_bytes=200_000, max_neighbours=100))) as client:
        yield client


def ask(client, path, table, **options):
    answer = client.post(path, content=body(table), headers=AS_JSON, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


def check_refused(answer, status, reason):
    assert (answer.status_code, answer.headers["content-type"]) == (status, JSON), answer.text
    assert set(answer.json()) == {"error"} and reason in answer.json()["error"]
    assert answer.headers["x-tabmoco-model"] and answer.headers["x-tabmoco-schema"]


def check_same(found: list[dict], expected: pa.Table) -> None:
    assert len(found) == expected.num_rows
    for mine, theirs in zip(found, expected.to_pylist(), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if isinstance(value, float):
                assert mine[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
            elif isinstance(value, list) and value and isinstance(value[0], float):
                np.testing.assert_allclose(mine[name], value, atol=1e-5)
            elif name == "cells" and value is not None:
                assert {cell["column"]: cell["found"] for cell in mine[name]} == {
                    cell["column"]: cell["found"] for cell in value
                }
            else:
                assert mine[name] == value, name


# ---------------------------------------------------------------- answers


def test_answers_are_those_of_the_model_in_both_forms(client, model, table):
    few = table.slice(3, 7)
    source = open_table(few, id_column="order")
    expected = {
        "/score": model.score(source),
        "/score?explain=true&fpr=0.5&top_cells=2": model.score(source, explain=True, fpr=0.5, top_cells=2),
        "/score?fdr=0.9": model.score(source, fdr=0.9),
        "/explain": model.score(source, explain="all"),
        "/search?k=3": model.search(source, k=3),
        "/embed": pa.Table.from_batches(model.iter_embeddings(source)),
        "/embed?space=expected": pa.Table.from_batches(model.iter_embeddings(source, space="expected")),
    }
    for path, told in expected.items():
        check_same(ask(client, path, few), told)
        answer = client.post(path, content=stream(few), headers=AS_ARROW)
        assert answer.headers["content-type"] == ARROW
        with pa.ipc.open_stream(io.BytesIO(answer.content)) as reader:
            arrow = reader.read_all()
        assert arrow.schema.remove_metadata() == told.schema and arrow.schema.metadata == {b"notes": b"[]"}
        check_same(arrow.to_pylist(), told)
    nameless = few.drop_columns("order")
    check_same(ask(client, "/score", nameless), model.score(nameless))
    check_same(ask(client, "/search?k=2", nameless), model.search(nameless, k=2))
    check_same(ask(client, "/score?id_column=shelf", few), model.score(few).set_column(0, "shelf", few["shelf"]))
    assert ask(client, "/score", few.slice(0, 0)) == []
    extra = few.append_column("more", few["size"])
    assert client.post("/embed", content=body(extra), headers=AS_JSON).json()["notes"] == [
        "Columns unknown to the model are ignored: 'more'."
    ]


def test_every_example_of_the_description_works(client, live):
    described = client.get("/openapi.json").json()
    n_asked = 0
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            if "requestBody" in told:
                example = told["requestBody"]["content"][JSON]["example"]
                answer = client.request(method, path, json=example)
                assert answer.status_code == 200 and answer.json()["rows"] and answer.json()["notes"] == []
                n_asked += 1
            elif path != "/reload":
                assert client.request(method, path).status_code == 200
    assert n_asked == 4
    columns = client.get("/schema").json()["columns"]
    assert [column["name"] for column in columns] == [column.name for column in live.current.model.schema.used]
    assert example["rows"][0] == {"order": "a-1"} | {column["name"]: column["example"] for column in columns}
    forms = {column["name"]: column["form"] for column in columns}
    assert forms["waited"] == "a number of seconds" and forms["day"].startswith("text: a date")


def test_headers_name_the_model_and_answers_stay_out_of_caches(client, live):
    for answer in (client.get("/health"), client.get("/nowhere"), client.get("/docs"), client.post("/score")):
        assert answer.headers["x-tabmoco-model"] == live.current.fingerprint
        assert answer.headers["x-tabmoco-schema"] == schema_version(live.current.model)
        assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/health").json() == {"status": "ok", "model": live.current.fingerprint}
    assert "default-src 'none'" in client.get("/docs").headers["content-security-policy"]
    assert "http://" not in client.get("/docs").text and "https://" not in client.get("/docs").text


def test_metrics_count_requests_rows_and_calls(client, table, live):
    ask(client, "/score", table.slice(0, 5))
    client.get("/no/such/path")
    client.post("/score", content=b"{", headers=AS_JSON)
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'tabmoco_requests_total{route="/score",status="200"} 1.0',
        'tabmoco_requests_total{route="/score",status="400"} 1.0',
        'tabmoco_requests_total{route="other",status="404"} 1.0',
        'tabmoco_rows_total{route="/score"} 5.0',
        "tabmoco_call_rows_sum 5.0",
        "tabmoco_waiting_rows 0.0",
        'tabmoco_request_seconds_count{route="/score"} 2.0',
    ):
        assert line in lines
    assert any(f'fingerprint="{live.current.fingerprint}"' in line for line in lines if "tabmoco_model_info" in line)
    assert not any("/no/such/path" in line for line in lines)


# ---------------------------------------------------------------- refusals


def test_bad_requests_are_refused_with_the_reason(client, table):
    few = body(table.slice(0, 3))
    for options, reason in {
        "fpr=2": "the option fpr does not fit: Input should be less than or equal to 1, got '2'",
        "fpr=nan": "the option fpr does not fit",
        "fpr=": "the option fpr does not fit",
        "fdr=-1": "the option fdr does not fit",
        "explain=perhaps": "the option explain does not fit",
        "top_cells=0": "the option top_cells does not fit",
        "fprr=0.1": "there is no option 'fprr' here; there are fpr, fdr, explain, top_cells, id_column",
        "k=3": "there is no option 'k'",
    }.items():
        check_refused(client.post(f"/score?{options}", content=few, headers=AS_JSON), 400, reason)
    check_refused(client.post("/score?fpr=0.1&fdr=0.1", content=few, headers=AS_JSON), 422, "either fpr or fdr")
    check_refused(client.post("/search?k=0", content=few, headers=AS_JSON), 400, "option k")
    check_refused(client.post("/search?k=90", content=few, headers=AS_JSON), 413, "at most 1 rows, got 3")
    check_refused(client.post("/score", content=few), 415, "must be application/json or application/vnd.apache")
    zipped = {**AS_JSON, "content-encoding": "gzip"}
    check_refused(client.post("/score", content=few, headers=zipped), 415, "must not be compressed, got 'gzip'")
    check_refused(client.post("/score", content=b"{" * 300_000, headers=AS_JSON), 413, "at most 200,000 bytes")
    pieces = (b" " * 1_000 for _ in range(1_000))
    check_refused(client.post("/score", content=pieces, headers=AS_JSON), 413, "at most 200,000 bytes")
    check_refused(client.get("/score"), 405, "another method")
    check_refused(client.post("/score/", content=few, headers=AS_JSON), 404, "/docs has all")
    check_refused(client.post("/reload"), 403, "reloading needs a token")
    rows = records(table.slice(0, 2))
    rows[1]["fragile"] = "perhaps"
    check_refused(client.post("/score", json={"rows": rows}), 422, "'fragile' must hold true or false")
    named = client.post("/score", json={"rows": [{"x" * 50_000: 1}]})
    check_refused(named, 422, "must have the columns of training")
    assert len(named.content) < 3_000


def test_only_who_knows_the_token_may_ask(live, table):
    with TestClient(build_app(live, token=TOKEN)) as client:
        assert client.get("/health").status_code == 200 and client.get("/docs").status_code == 200
        for given in (None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é".encode()):
            headers = {} if given is None else {"authorization": given}
            for path in ("/metrics", "/schema", "/openapi.json", "/nowhere"):
                answer = client.get(path, headers=headers)
                check_refused(answer, 401, "a bearer token is needed")
                assert answer.headers["www-authenticate"] == "Bearer"
            check_refused(client.post("/reload", headers=headers), 401, "token")
        known = {"authorization": f"bearer {TOKEN}"}
        assert client.post("/score", content=body(table), headers={**AS_JSON, **known}).status_code == 200
        assert client.get("/openapi.json", headers=known).status_code == 200


def test_pages_of_other_hosts_cannot_ask_through_a_browser(live):
    with TestClient(build_app(live, hosts=("localhost", "127.0.0.1", "[::1]"))) as client:
        for host in ("localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000", "[::1]"):
            assert client.get("/health", headers={"host": host}).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example:8000", "[::2]", ""):
            check_refused(client.get("/schema", headers={"host": host}), 403, "the host must be one of")


def test_nobody_waits_for_ever_and_too_many_are_sent_away(live, table, monkeypatch):
    gate = threading.Event()
    answer = Embed.answer
    monkeypatch.setattr(Embed, "answer", lambda *given: gate.wait(20) and answer(*given))
    few = body(table.slice(0, 3))
    with TestClient(build_app(live, Limits(answer_seconds=0.3, max_concurrent=3))) as client:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: client.post("/embed", content=few, headers=AS_JSON), range(12)))
        assert {answer.status_code for answer in answers} == {503}
        reasons = {answer.json()["error"].split(";")[0] for answer in answers}
        assert reasons == {"3 requests are being answered already", "there was no answer within 0.3 seconds"}
        assert all(answer.headers["retry-after"] == "1" for answer in answers)
        assert client.get("/health").status_code == 200
        gate.set()
        assert client.post("/embed", content=few, headers=AS_JSON).status_code == 200


def test_an_error_of_ours_is_numbered_and_says_nothing_of_the_rows(client, table, monkeypatch, caplog):
    cell = "secret"

    def fail(*_):
        raise RuntimeError(cell)

    monkeypatch.setattr(Embed, "answer", fail)
    with caplog.at_level(logging.ERROR, "tabmoco.serve"):
        answer = client.post("/embed", content=body(table.slice(0, 3)), headers=AS_JSON)
    check_refused(answer, 500, "something went wrong; the log has more under ")
    number = answer.json()["error"].rstrip(".").split()[-1]
    assert number in caplog.text and "RuntimeError" in caplog.text and "test_serve_app.py" in caplog.text
    assert cell not in answer.text and cell not in caplog.text

    monkeypatch.setattr(Embed, "answer", lambda *_: (_ for _ in ()).throw(MemoryError()))
    check_refused(client.post("/embed", content=body(table), headers=AS_JSON), 503, "send fewer rows")


# ---------------------------------------------------------------- many at once, and another model


def test_fifty_clients_at_once_get_the_answers_of_their_rows(client, model, table):
    scores = dict(zip(table["order"].to_pylist(), model.score(table)["anomaly_score"].to_pylist(), strict=True))
    generator = np.random.default_rng(0)
    asked = [table.take(generator.integers(0, len(table), generator.integers(1, 6))) for _ in range(200)]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda rows: client.post("/score", content=body(rows), headers=AS_JSON), asked))
    n_answered = 0
    for rows, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200, answer.text
        found = answer.json()["rows"]
        assert [row["order"] for row in found] == rows["order"].to_pylist()
        for row in found:
            assert row["anomaly_score"] == pytest.approx(scores[row["order"]], rel=1e-4)
        n_answered += len(found)
    lines = client.get("/metrics").text.splitlines()
    assert f"tabmoco_call_rows_sum {float(n_answered)}" in lines
    (n_calls,) = [float(line.split()[1]) for line in lines if line.startswith("tabmoco_call_rows_count")]
    assert n_calls < len(asked)


def test_another_model_takes_over_without_a_lost_request(live, models, folder, table):
    few = table.slice(0, 2)
    scores = [model.score(few)["anomaly_score"].to_pylist() for model in models]
    by_model = {live.current.fingerprint: scores[0]}
    known = {"authorization": f"Bearer {TOKEN}"}
    stop, answers = threading.Event(), []

    def keep_asking(client):
        while not stop.is_set():
            answers.append(client.post("/score", content=body(few), headers={**AS_JSON, **known}))

    with TestClient(build_app(live, token=TOKEN)) as client, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking, client) for _ in range(4)]
        try:
            assert client.post("/reload", headers=known).json()["is_new"] is False
            models[1].save(folder, overwrite=True)
            told = client.post("/reload", headers=known)
            assert told.json()["is_new"] is True and told.headers["x-tabmoco-model"] == told.json()["model"]
            by_model[told.json()["model"]] = scores[1]
            time.sleep(0.3)
        finally:
            stop.set()
        for one in asking:
            one.result()
        (folder / "encoder.safetensors").write_bytes(b"")
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + " ")
        check_refused(client.post("/reload", headers=known), 409, "stays the old one: encoder.safetensors in ")
        assert client.get("/health").json()["model"] == told.json()["model"]
        assert "tabmoco_reload_failures 1.0" in client.get("/metrics", headers=known).text
    assert {answer.status_code for answer in answers} == {200} and len(by_model) == 2
    assert {answer.headers["x-tabmoco-model"] for answer in answers} == set(by_model)
    for answer in answers:
        found = [row["anomaly_score"] for row in answer.json()["rows"]]
        assert found == pytest.approx(by_model[answer.headers["x-tabmoco-model"]], rel=1e-4)


def test_a_watched_directory_is_served_as_it_changes(live, models, folder, monkeypatch, caplog):
    monkeypatch.setattr("tabmoco.serve.live.LOOK_SECONDS", 0.02)
    first = live.current.fingerprint
    with TestClient(build_app(live, watch=True)) as client, caplog.at_level(logging.WARNING, "tabmoco.serve"):
        os.rename(folder, folder.with_name("gone"))
        time.sleep(0.3)
        assert client.get("/health").json()["model"] == first
        assert caplog.text.count("The model stays the old one") == 1
        models[1].save(folder)
        until = time.monotonic() + 20
        while client.get("/health").json()["model"] == first and time.monotonic() < until:
            time.sleep(0.02)
        assert client.get("/health").json()["model"] == live.current.fingerprint != first


def test_a_directory_that_changes_while_it_is_read_is_not_served(folder, monkeypatch):
    load = Generation.load.__func__.__globals__["RowModel"].load

    def replaced(*given, **options):
        (folder / "manifest.json").write_text(json.dumps({}))
        return model

    model = load(folder)
    monkeypatch.setattr("tabmoco.serve.live.RowModel.load", replaced)
    with pytest.raises(ModelFileError, match="was replaced while it was read"):
        Generation.load(folder)
