"""Markdown into HTML and back."""

import random

import pytest
from reverie_matrix.html import to_html, to_markdown

SHOWN = {
    "plain, 2 < 3 & 4 * 5": "",
    "**bold** and *italic*": "<strong>bold</strong> and <em>italic</em>",
    "~~no~~ ||who||": "<del>no</del> <span data-mx-spoiler>who</span>",
    "`a < b`": "<code>a &lt; b</code>",
    "one\n**two**": "one<br><strong>two</strong>",
    "x\n```python\nif a:\n\n    b\n```\ny": 'x<pre><code class="language-python">if a:&#10;&#10;    b</code></pre>y',
    "> quoted\n\nmine": "<blockquote>quoted</blockquote><br>mine",
    "[a](https://b.example/?c&d)": '<a href="https://b.example/?c&amp;d">a</a>',
    "[a](/there)": "a (/there)",
    "**<script>**": "<strong>&lt;script&gt;</strong>",
}
READ = {
    "<p>one</p>\n<p>two<br/>three</p>": "one\n\ntwo\nthree",
    "<b>b</b> <i>i</i> <del>d</del> <code>c`d</code>": "**b** *i* ~~d~~ ``c`d``",
    "<ul>\n<li>a\n<ul><li>b</li></ul>\n</li>\n<li>c</li></ul>": "- a\n  - b\n- c",
    '<ol start="3"><li>a</li><li>b</li></ol>': "3. a\n4. b",
    "<blockquote><p>a</p><p>b</p></blockquote>c": "> a\n>\n> b\n\nc",
    '<pre><code class="language-py">a\n\n\n  b\n</code></pre>': "```py\na\n\n\n  b\n```",
    '<a href="https://a.example">x</a>': "[x](https://a.example)",
    '<a href="https://matrix.to/#/@ann:a.example">Ann</a>: hi': "Ann: hi",
    "<mx-reply><blockquote>old</blockquote></mx-reply>new": "new",
    "<h2>Title</h2>text": "## Title\n\ntext",
    '<span data-mx-spoiler="why">x</span>': "||x||",
    "<b>never closed <i>at all": "**never closed *at all***",
    "a &lt;b&gt; &amp; &#0;&#1;c": "a <b> & \ufffdc",
    "<script>alert(1)</script>": "alert(1)",
}


@pytest.mark.parametrize(("markdown", "html"), SHOWN.items())
def test_markdown_is_shown(markdown: str, html: str) -> None:
    assert to_html(markdown) == html


@pytest.mark.parametrize(("html", "markdown"), READ.items())
def test_html_is_read(html: str, markdown: str) -> None:
    assert to_markdown(html) == markdown


def test_odd_html_is_read_without_an_error() -> None:
    pieces = ["<", ">", "<!", "<![", "<!--", "&", "&#x", "</", "<b", "<li>", "<ol start='", "]]>", "\x00", "<pre>", "x", "\n", "<?", "<table><tr><td>"]  # fmt: skip
    chosen = random.Random(1)
    for _ in range(20_000):
        text = "".join(chosen.choices(pieces, k=12))
        assert "\x00" not in to_markdown(text), text
