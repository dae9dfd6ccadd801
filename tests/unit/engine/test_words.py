"""Words of a command line are read as argparse reads them."""

from ddtree_ops.engine.words import flag_value, without_flags

WORDS = ("--a", "1", "--b=2", "--c", "--d", "x", "y")


def test_flags_are_found_and_left_out_with_their_values() -> None:
    assert [flag_value(WORDS, name) for name in ("--a", "--b", "--c", "--e")] == ["1", "2", "--d", None]
    assert without_flags(WORDS, {"--a", "--b", "--d"}.__contains__) == ("--c",)


def test_the_last_of_two_values_counts() -> None:
    assert flag_value((*WORDS, "--a=3"), "--a") == "3"
