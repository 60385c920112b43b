import pytest

from orchard.core.errors import TaskRefused
from orchard.tasks.release_pair.requirements import build_requirements, declared_requirements
from orchard.tasks.tree import SourceFile, Tree
from orchard.tasks.uv import Platform, canonical, names_in


def tree(**files: str) -> Tree:
    return {name: SourceFile(text.encode()) for name, text in files.items()}


def test_the_back_end_is_asked_for_and_setuptools_where_none_is_named() -> None:
    assert build_requirements(tree(**{"pyproject.toml": '[build-system]\nrequires = ["flit_core<4"]'})) == [
        "flit_core<4"
    ]
    assert build_requirements(tree(**{"pyproject.toml": "[tool.x]\na = 1"})) == ["setuptools", "wheel"]
    assert build_requirements({}) == ["setuptools", "wheel"]
    with pytest.raises(TaskRefused):
        build_requirements(tree(**{"pyproject.toml": "= broken"}))


def test_what_tests_need_is_found_where_projects_say_it() -> None:
    found = list(declared_requirements(tree(**{
        "pyproject.toml": '[project.optional-dependencies]\ntest = ["a>1"]\ndocs = ["sphinx"]\n'
                          '[dependency-groups]\ntests = ["b", {include-group = "x"}]',
        "requirements/tests.in": "# comment\n-r other.txt\nbroken==\nc==1  # pinned\n\ne ; python_version < '4'\n",
        "tox.ini": "[testenv]\ndeps =\n    d\n    py38: old\n    -r requirements.txt\n    {posargs}\n",
    })))  # fmt: skip
    assert found == ["a>1", "b", "c==1", "e ; python_version < '4'", "d"]


def test_names_are_compared_in_their_normal_form() -> None:
    assert canonical("Some_Lib..X") == "some-lib-x"
    assert names_in('[[packages]]\nname = "Jinja2"\n[[packages]]\nname = "ruamel_yaml"\n') == {"jinja2", "ruamel-yaml"}


@pytest.mark.parametrize(
    ("libc", "platform"),
    [
        ("glibc-2.36", "x86_64-manylinux_2_28"), ("glibc-2.17", "x86_64-manylinux2014"),
        ("musl", "x86_64-unknown-linux-musl"),
    ],
)  # fmt: skip
def test_wheels_are_those_of_the_images_libc(libc: str, platform: str) -> None:
    arguments = Platform("3.11", "x86_64", libc).arguments()
    assert arguments[arguments.index("--python-platform") + 1] == platform
    assert arguments[-2:] == ["--only-binary", ":all:"]
