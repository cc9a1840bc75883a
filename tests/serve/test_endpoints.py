"""The endpoints, over a real socket, next to the same model in this process."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import fewfold as ff
from tests.serve.running import Running, serving


def items(answer: dict[str, Any]) -> list[Any]:
    return [one["item"] for one in answer["items"]]


def error(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"code", "message", "field"}
    return found


def test_histories_are_ranked_as_in_process(server: Running, local: ff.Recommender) -> None:
    history = ["a1", "a2", "c3"]
    answer = server.post("/v1/recommendations", {"history": history, "k": 5}).json()
    expected = local.recommend_from_history(history, 5)
    assert items(answer) == expected.items
    assert [one["score"] for one in answer["items"]] == pytest.approx(expected.scores)
    assert [one["attributes"] for one in answer["items"]] == expected.attributes
    assert (answer["user"], answer["unknown"], answer["note"]) == (None, [], None)
    again = server.post("/v1/recommendations", {"history": history, "k": 5}).json()
    assert again["id"] != answer["id"]
    assert again["model"] == answer["model"]


def test_users_are_ranked_as_in_process(server: Running, local: ff.Recommender) -> None:
    answer = server.get("/v1/users/u7/recommendations", params={"k": 4}).json()
    assert items(answer) == local.recommend("u7", 4).items
    assert answer["user"] == "u7"
    seen = server.get("/v1/users/u7/recommendations", params={"k": 4, "exclude_seen": "false"})
    assert items(seen.json()) == local.recommend("u7", 4, exclude_seen=False).items


def test_queries_of_a_list_keep_their_order_and_options(
    server: Running, local: ff.Recommender
) -> None:
    queries: list[dict[str, Any]] = [
        {"user": "u1", "k": 3},
        {"history": ["b1"], "k": 1, "exclude_seen": False},
        {"history": ["b1"], "items": ["b2", "b3", "nothing"], "k": 20},
        {"user": "u2", "exclude": ["c1", "c2", "unheard"], "k": 7},
        {"user": "u3", "explain": True, "k": 2},
        {"user": "u4", "k": 20},
    ]
    answers = server.post("/v1/recommendations", queries).json()
    expected = [
        local.recommend("u1", 3),
        local.recommend_from_history(["b1"], 1, exclude_seen=False),
        local.recommend_from_history(["b1"], 20, items=["b2", "b3"]),
        local.recommend("u2", 7, filter_items=["c1", "c2"]),
        local.recommend("u3", 2, explain=True),
        local.recommend("u4", 20),
    ]
    assert [items(answer) for answer in answers] == [one.items for one in expected]
    assert [answer["unknown"] for answer in answers] == [[], [], ["nothing"], ["unheard"], [], []]
    because = [
        [(b["item"], b["contribution"]) for b in one["because"]] for one in answers[4]["items"]
    ]
    assert expected[4].because is not None
    for ours, theirs in zip(because, expected[4].because, strict=True):
        assert [item for item, _ in ours] == [item for item, _ in theirs]
        assert [much for _, much in ours] == pytest.approx([much for _, much in theirs])
    assert all("because" not in one for one in answers[0]["items"])
    assert len({answer["id"] for answer in answers}) == len(answers)
    assert server.post("/v1/recommendations", []).json() == []


def test_answers_that_are_not_personal_say_why(server: Running, local: ff.Recommender) -> None:
    popular = local.recommend_from_history([], 3).items
    for query, word in (
        ({"history": []}, "empty"),
        ({"history": ["unheard"]}, "known"),
        ({"user": "nobody", "fallback": "popular"}, "unknown"),
    ):
        answer = server.post("/v1/recommendations", {**query, "k": 3}).json()
        assert items(answer) == popular
        assert word in answer["note"]
        assert "most popular" in answer["note"]
    nothing = server.post("/v1/recommendations", {"history": ["a1"], "items": ["unheard"]}).json()
    assert nothing["items"] == []
    assert "no candidate" in nothing["note"]
    fallback = server.get("/v1/users/nobody/recommendations", params={"fallback": "popular"})
    assert fallback.status_code == 200


def test_unknown_users_and_items(server: Running) -> None:
    for path, code in (
        ("/v1/users/nobody/recommendations", "unknown_user"),
        ("/v1/users/nobody", "unknown_user"),
        ("/v1/items/nothing", "unknown_item"),
        ("/v1/items/nothing/similar", "unknown_item"),
    ):
        response = server.get(path)
        assert response.status_code == 404
        assert error(response)["code"] == code
    response = server.post("/v1/recommendations", [{"user": "u1"}, {"user": "nobody"}])
    assert response.status_code == 404
    assert error(response)["field"] == "1.user"


def test_items(server: Running, local: ff.Recommender) -> None:
    item = server.get("/v1/items/a3").json()
    assert item["attributes"] == {"name": "The A number 3", "taste": "a", "year": "1993"}
    assert item["known"] is True
    assert local.history is not None
    assert item["users"] == int(local.history.counts()[local.items.find(["a3"])])
    similar = server.get("/v1/items/a3/similar", params={"k": 3}).json()
    assert items(similar) == local.similar_items("a3", 3).items
    assert similar["model"] == item["model"]


def test_search_lists_equal_then_prefix_then_part_by_popularity(server: Running) -> None:
    found = server.get("/v1/items", params={"search": "A NUMBER", "limit": 50}).json()["items"]
    assert sorted(one["item"] for one in found) == [f"a{n}" for n in range(10)]
    assert [one["users"] for one in found] == sorted((o["users"] for o in found), reverse=True)
    assert server.get("/v1/items", params={"search": "b7"}).json()["items"][0]["item"] == "b7"
    assert server.get("/v1/items", params={"search": "zz"}).json()["items"] == []
    popular = server.get("/v1/items", params={"limit": 5}).json()["items"]
    assert len(popular) == 5
    users = server.get("/v1/users", params={"search": "u11", "limit": 4}).json()["users"]
    assert users[0]["user"] == "u11"
    assert {one["user"] for one in users[1:]} <= {f"u11{n}" for n in range(10)}


def test_ids_of_any_text_go_through_paths(tmp_path: Path) -> None:
    """Slashes, dots, spaces, percent signs and other scripts, encoded as RFC 3986 says."""
    odd = [
        "a/b",
        "..x",
        "50%",
        "a b",
        "naïve",
        "日本",
        "x/similar",
        "?k=1",
        "#",
        "\u0000",
        "a+b",
        "%2F",
    ]
    log = {"user": odd + odd, "item": odd + odd[1:] + odd[:1]}
    folder = (
        ff.Recommender(ff.recommender.EASE(l2=1.0)).fit(log, progress=False).save(tmp_path / "m")
    )
    local = ff.Recommender.load(folder)
    with serving(folder, folder=tmp_path) as server:
        for one in odd:
            path = quote(one, safe="")
            assert server.get(f"/v1/items/{path}").json()["item"] == one
            similar = server.get(f"/v1/items/{path}/similar?k=2").json()
            assert items(similar) == local.similar_items(one, 2).items
            history = server.get(f"/v1/users/{path}").json()
            assert history["user"] == one
            answer = server.get(f"/v1/users/{path}/recommendations?k=2").json()
            assert items(answer) == local.recommend(one, 2).items
        assert error(server.get("/v1/items/%ff"))["code"] == "invalid_path"


def test_feedback_counts_at_once(server: Running) -> None:
    before = server.get("/v1/users/new-one/recommendations")
    assert before.status_code == 404
    stored = server.post(
        "/v1/feedback",
        [{"user": "new-one", "item": "a1", "time": 5}, {"user": "new-one", "item": "soap"}],
    )
    assert stored.status_code == 201
    assert stored.json()["stored"] == 2
    assert stored.json()["unknown_items"] == ["soap"]
    answer = server.get("/v1/users/new-one/recommendations").json()
    history = server.post("/v1/recommendations", {"history": ["a1"]}).json()
    assert answer["items"] == history["items"]
    assert "a1" not in items(answer)
    told = server.get("/v1/users/new-one").json()["history"]
    assert [(one["item"], one["from"]) for one in told] == [
        ("a1", "feedback"),
        ("soap", "feedback"),
    ]
    one = {"user": "u1", "item": "a1", "recommendation": answer["id"], "time": "2024-05-01T10:00Z"}
    assert server.post("/v1/feedback", one).status_code == 201
    for field, event in (
        ("time", {"user": "u", "item": "i", "time": "yesterday"}),
        ("user", {"user": "", "item": "i"}),
    ):
        wrong = server.post("/v1/feedback", event)
        assert wrong.status_code == 400
        assert error(wrong)["field"] == field


def test_model(server: Running, local: ff.Recommender) -> None:
    found = server.get("/v1/model").json()
    assert found["kind"] == "ease"
    assert found["settings"]["l2"] == 1.0
    assert found["card"].startswith("#")
    assert found["metrics"]["overall"]["scores"]
    assert found["counts"]["items"] == 40
    assert found["sizes"]["model.safetensors"] > 0
    assert found["attributes"]["taste"] == {"values": ["a", "b", "c", "d"]}
    assert found["attributes"]["year"] == {"min": 1990.0, "max": 1999.0}
    assert found["has"] == {"users": True, "anchors": False, "journal": True, "explain": True}
    missing = server.get("/v1/anchors")
    assert missing.status_code == 404
    assert error(missing)["code"] == "no_anchors"
    reloaded = server.post("/v1/admin/reload", None, headers={"content-type": "application/json"})
    assert reloaded.json() == {
        "model": found["model"], "previous": found["model"], "changed": False,
    }  # fmt: skip


def test_numbers_as_ids(tmp_path: Path) -> None:
    log = {"user": [1, 1, 2, 2, 3, 3], "item": [10, 11, 10, 12, 11, 12]}
    folder = (
        ff.Recommender(ff.recommender.EASE(l2=1.0)).fit(log, progress=False).save(tmp_path / "m")
    )
    with serving(folder, "--no-feedback", folder=tmp_path) as server:
        answer = server.get("/v1/users/1/recommendations").json()
        assert answer["user"] == 1
        assert items(answer) == [12]
        for history in ([10, 11], ["10", "11"]):
            same = server.post("/v1/recommendations", {"history": history}).json()
            assert items(same) == [12]
        assert server.get("/v1/users/1").json()["user"] == 1
        assert server.get("/v1/items/10").json()["item"] == 10
        refused = server.post("/v1/feedback", {"user": 1, "item": 12})
        assert refused.status_code == 503
        assert error(refused)["code"] == "no_journal"
        assert server.get("/v1/model").json()["has"]["journal"] is False


def test_conditions_and_diversity_as_in_process(server: Running, local: ff.Recommender) -> None:
    history = ["a1", "b2", "b3"]
    where: list[dict[str, Any]] = [
        {"taste": "a"},
        {"taste": ["a", "c"], "year": {"min": 1995}},
        {"year": {"not": [1991, 1992], "max": 1994}},
    ]
    queries: list[dict[str, Any]] = [{"history": history, "k": 8, "where": one} for one in where]
    queries += [
        {"history": history, "k": 6, "diversity": 0.7},
        {"history": history, "k": 6, "diversity": {"amount": 0.9, "by": "taste"}},
        {"history": history, "k": 6, "at_most": {"taste": 2}},
    ]
    answers = server.post("/v1/recommendations", queries).json()
    div = ff.recommender.Diversity
    options: list[dict[str, Any]] = [{"k": 8, "where": one} for one in where]
    options += [
        {"k": 6, "diversity": 0.7},
        {"k": 6, "diversity": div(0.9, by="taste")},
        {"k": 6, "diversity": div(at_most={"taste": 2})},
    ]
    expected = [local.recommend_from_history(history, **one).items for one in options]
    assert [items(answer) for answer in answers] == expected
    for field, more in (
        ("where", {"where": {"colour": "red"}}),
        ("where", {"where": {}}),
        ("where", {"where": {"year": {}}}),
        ("diversity", {"diversity": {"amount": 0.5, "by": "colour"}}),
        ("at_most", {"at_most": {"colour": 2}}),
    ):
        response = server.post("/v1/recommendations", {"history": history, **more})
        assert response.status_code == 400
        assert error(response)["field"] == field
    nothing = server.post("/v1/recommendations", {"history": history, "where": {"taste": "z"}})
    assert nothing.json()["items"] == []
