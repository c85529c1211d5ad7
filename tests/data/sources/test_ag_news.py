"""AG News: tokens, vocabulary and files."""

import pytest
import torch
from user_data import load, md5, refusal

from hpcfl.data.sources import ag_news


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Wall St. Bears Claw Back Into the "Black" (Reuters)',
            "wall st . bears claw back into the black ( reuters )",
        ),
        (
            "it's 3:30; <br />really? yes, no! a-b",
            "it ' s 3 30 really ? yes , no ! a-b",
        ),
        ("  a\\b\tc ", "a\\b c"),
    ],
)
def test_tokens_follow_basic_english(text, expected):
    assert ag_news.tokenise(text) == expected.split()


def test_a_vocabulary_is_ordered_by_frequency_then_alphabetically():
    ids, vocabulary = ag_news.encode([["b", "a", "c", "c"], ["x"] * 201])
    assert vocabulary == 5 and ids.shape == (2, 200)
    assert ids[0].tolist() == [4, 3, 2, 2] + [0] * 196 and (ids[1] == 1).all()


@pytest.fixture
def news(tmp_path, monkeypatch):
    parts = {
        "train.csv": b'"3","A title","Some ""words"", here"\n"1","B","more"\n',
        "test.csv": b'"4","C","some"\n',
    }
    (tmp_path / "news").mkdir()
    for file, content in parts.items():
        (tmp_path / "news" / file).write_bytes(content)
    checksums = {file: md5(tmp_path / "news" / file) for file in parts}
    monkeypatch.setattr(ag_news, "plugin", ag_news.CsvFiles("", "news", checksums))
    return tmp_path


def test_ag_news_is_train_then_test(news):
    data = load("ag-news", news)
    assert data.y.tolist() == [2, 0, 3]
    assert data.official_test == 1
    assert data.classes == 4
    assert not data.notes
    assert data.x.dtype == torch.int32 and data.normalise(data.x) is data.x
    # a title some words , here; "some" is the most frequent
    assert data.x[0, :7].tolist() == [3, 8, 1, 9, 2, 6, 0]
    assert data.vocabulary == 1 + len(
        {"a", "title", "some", "words", ",", "here", "b", "more", "c"}
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'"5","C","some"\n', "row 1 "),
        (b'"1","C","some"\nx,y\n', "row 2 "),
        (b"\xff\xfe", ""),
        (b'"1","' + b"x" * 200_000 + b'"', ""),
    ],
)
def test_rows_without_a_class_are_named(news, monkeypatch, content, words):
    path = news / "news" / "test.csv"
    path.write_bytes(content)
    monkeypatch.setitem(ag_news.plugin.checksums, "test.csv", md5(path))
    assert f"test.csv: {words}" in refusal("ag-news", news)


def test_the_test_file_alone_is_enough_with_a_note(news):
    (news / "news" / "train.csv").unlink()
    data = load("ag-news", news)
    assert data.y.tolist() == [3] and data.official_test == 0
    assert "1 samples of test.csv" in data.notes[0]
