"""Documents become chunks: with their headings, and no longer than one may be."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from knowledge_fakes import make_pdf

from parley.errors import ModelLoadingError
from parley.knowledge import chunks as chunks_module
from parley.knowledge import pdf as pdf_module
from parley.knowledge.chunks import LONGEST, split_document
from parley.knowledge.documents import KnowledgeError
from parley.knowledge.pdf import pages_of

MARKDOWN = """Before all.

# Manual #
Welcome.
<!-- ## not shown -->
## Printers
They print.

### Toner
```sh
# no heading
```
## Network
Wi-Fi.
#hashtag
# Other
End.
"""


def pairs(name, text):
    return [(one.heading, one.text) for one in split_document(name, text.encode())]


def test_markdown_has_the_path_of_headings():
    assert pairs("manual.md", MARKDOWN) == [
        ("", "Before all."),
        ("Manual", "Welcome."),
        ("Manual > Printers", "They print."),
        ("Manual > Printers > Toner", "```sh\n# no heading\n```"),
        ("Manual > Network", "Wi-Fi.\n#hashtag"),
        ("Other", "End."),
    ]


def test_comment_that_does_not_end_is_text():
    assert pairs("a.md", "One<!-- not shown -->\n# Two ## \n<!-- shown <!-- too") == [
        ("", "One"),
        ("Two", "<!-- shown <!-- too"),
    ]


HTML = """<!doctype html><title>Title</title><style>p {}</style>
<!-- not shown --><nav><a href="/">Home</a></nav>
<p>Before <b>a</b>ll.
<h1>Manual <small>2</small></h1>
<div>Wel&shy;come &amp; enjoy.<br>Yes.</div><script>if (a<b) x("<h2>no</h2>")</script>
<section><header><h2>Printers</h2></header><p>They print.<ul><li>Toner<li>Paper</ul></section>
<table><tr><th>Floor<td>3</table><svg><text>no</text></svg>
<h2>Network</h2><pre>Wi-Fi.</pre><p>unclosed <a title="<h1>no</h1>"
"""


def test_html_has_the_path_of_headings_and_no_scripts_or_navigation():
    assert [(heading, " / ".join(text.split("\n"))) for heading, text in pairs("a.HTML", HTML)] == [
        ("", "Before all."),
        ("Manual 2", "Wel\xadcome & enjoy. / Yes."),
        ("Manual 2 > Printers", "They print. /  / Toner / Paper /  / Floor / 3"),
        ("Manual 2 > Network", "Wi-Fi. /  / unclosed"),
    ]


@pytest.mark.parametrize("piece", ["<a ", "<div>", "<!--", "<a b='", "</", "<h1>", "&", "<![", "<table><tr>"])
def test_html_that_is_no_page_is_read_in_linear_time(piece):
    split_document("a.html", b"text " + piece.encode() * (20_000 // len(piece)))


@pytest.mark.parametrize(
    "hidden",
    [
        *("<p hidden>no</p>", "<p aria-hidden=TRUE>no</p>", '<h1 style="color: red;DISPLAY : none">no</h1>'),
        *("<b style='visibility:hidden !important'>no<br></b>", "<template>no</template>"),
        "<div hidden><h2>no</h2><img>no</div>",
    ],
)
def test_hidden_html_is_not_read(hidden):
    found = pairs("a.html", f"<h1>One</h1>yes<i hidden></i>, {hidden}<p style='display:block'>and yes")
    assert [(heading, "".join(text.split())) for heading, text in found] == [("One", "yes,andyes")]


def test_html_of_tags_takes_a_few_times_its_size_in_memory():
    raw = b"<p>" * 400_000
    tracemalloc.start()
    try:
        split_document("a.html", raw + b"end")
        assert tracemalloc.get_traced_memory()[1] < 10 * len(raw)
    finally:
        tracemalloc.stop()


def test_html_tag_with_many_attributes_is_read_in_linear_time():
    attributes = " ".join(f"a{number}=1" for number in range(100_000))  # minutes in quadratic time
    assert pairs("a.html", f"<p {attributes}>text") == [("", "text")]


def test_html_is_read_at_any_depth():
    words = [f"w{number}" for number in range(3_000)]
    found = pairs("a.html", "<div>".join(words) + "<script>no</script><h2>End</h2>last &amp;  least")
    assert " ".join(text for _, text in found).split() == [*words, "last", "&", "least"]
    assert found[-1] == ("End", "last & least")


@pytest.mark.parametrize("text", ["", "<nav>Home</nav>", "<!-- a -->"])
def test_html_without_text_is_an_error(text):
    with pytest.raises(KnowledgeError, match=r"a\.htm has no text"):
        split_document("a.htm", text.encode())


def test_text_has_no_headings():
    assert pairs("a.txt", "\ufeff# One\r\n\r\nTwo") == [("", "# One\n\nTwo")]


def test_pdf_has_its_pages():
    found = split_document("faq.PDF", make_pdf("Returns take 14 days.", "Shipping is free."))
    assert [(one.heading, one.text) for one in found] == [
        ("page 1", "Returns take 14 days."),
        ("page 2", "Shipping is free."),
    ]


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.md", b"one\ntwo \xff", r"a.md:2: the text is not UTF-8"),
        ("a.txt", b" \n\n ", "a.txt has no text"),
        ("a.pdf", b"no pdf", "a.pdf cannot be read as PDF"),
        ("a.pdf", make_pdf(""), "a.pdf has no text; pictures of pages are not read"),
    ],
)
def test_file_that_is_not_what_its_name_says_is_refused(name, raw, words):
    with pytest.raises(KnowledgeError, match=words):
        split_document(name, raw)


def test_pdf_with_too_many_pages_is_refused(monkeypatch):
    monkeypatch.setattr(pdf_module, "_MOST_PAGES", 1)
    with pytest.raises(KnowledgeError, match="more than 1 pages"):
        pages_of(make_pdf("one", "two"))


@pytest.mark.parametrize(
    ("limit", "value", "text", "words"),
    [
        ("_MOST_S", 1, ") Tj" + " q Q" * 500_000 + " (", "takes more than 1 s of processor time"),
        ("_MOST_BYTES", 256 << 20, "a" * (16 << 20), "takes more than 256 MiB of memory"),
    ],
)
def test_pdf_that_takes_too_much_is_refused(monkeypatch, limit, value, text, words):
    monkeypatch.setattr(pdf_module, limit, value)
    with pytest.raises(KnowledgeError, match=rf"^a\.pdf {words}$"):
        split_document("a.pdf", make_pdf(text))


@pytest.mark.parametrize("python", ["/nowhere", "/bin/false"])
def test_process_that_fails_refuses_no_pdf(monkeypatch, python):
    monkeypatch.setattr(pdf_module, "find_python", lambda _: python)
    with pytest.raises(ModelLoadingError, match=r"^a\.pdf: the process that reads PDF") as error:
        split_document("a.pdf", make_pdf("one"))
    assert not isinstance(error.value, KnowledgeError)


def test_faults_of_a_pdf_are_not_logged(capfd):
    with pytest.raises(KnowledgeError):
        split_document("a.pdf", make_pdf(") Tj" + " <<" * 1_000 + " ("))
    assert capfd.readouterr().err == ""


def test_too_many_passages_are_refused_before_they_are_made(monkeypatch):
    made = []
    monkeypatch.setattr(chunks_module, "Chunk", lambda *parts: made.append(parts))
    monkeypatch.setattr(chunks_module, "MAX_CHUNKS", 3)
    with pytest.raises(KnowledgeError, match=r"a\.md: an agent may have 3 passages"):
        split_document("a.md", b"# y\na\n" * 100)
    assert len(made) == 4


def test_path_of_headings_is_no_longer_than_a_passage():
    titles = [letter * 400 for letter in "ab"]
    ((heading, _),) = pairs("a.md", f"# {titles[0]}\n## {titles[1]}\ntext")
    assert heading == " > ".join(titles)[:LONGEST]


def test_paragraphs_are_joined_as_far_as_they_fit():
    found = pairs("a.txt", "\n\n".join(f"{n} {'x' * 200}" for n in range(5)))
    assert [text.count("\n\n") + 1 for _, text in found] == [3, 2]


def test_long_paragraph_is_cut_at_sentences():
    found = pairs("a.txt", "One sentence of some length. " * 60)
    assert all(text.endswith("length.") for _, text in found)


@given(st.text(alphabet="ab .\n#`é", max_size=3_000).map(lambda text: f"x{text}"))
def test_nothing_is_lost_and_no_chunk_is_too_long(text):
    found = split_document("a.txt", text.encode())
    assert all(0 < len(one.text) <= LONGEST for one in found)
    assert "".join("".join(one.text for one in found).split()) == "".join(text.split())
