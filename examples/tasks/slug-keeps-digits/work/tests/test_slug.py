from slug import slug


def test_words() -> None:
    assert slug("Two Words!") == "two-words"
