"""Two pages for a browser: what is on this local Hub, and a repo with its card."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from oattn_hub.files.front_matter import FRONT_MATTER
from oattn_hub.local_hub.metadata import MAX_CARD
from oattn_hub.local_hub.repositories import open_repo
from oattn_hub.local_hub.routing import REPO, Request, Response, route

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_MAX_RENDERED = 200_000  # letters; a longer card is shown as plain text
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"  # nothing on these pages is a script
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{base}
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; color: #1f2328; max-width: 56rem; margin: 0 auto; padding: 0 1rem 3rem }}
.local {{ background: #fff4d6; border-bottom: 1px solid #d9a400; padding: .5rem 1rem; margin: 0 -1rem 1rem }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }}
th, td {{ border: 1px solid #d0d7de; padding: .3rem .7rem; text-align: left }}
pre {{ background: #f6f8fa; padding: .8rem; overflow-x: auto; border-radius: 6px }}
code {{ font-size: 90% }} img {{ max-width: 100% }}
</style></head><body>
<p class="local"><b>Local Hub on this machine.</b> Nothing here is on huggingface.co.</p>
{content}
</body></html>"""


@route("GET", "/")
def index(hub: LocalHub, request: Request) -> Response:
    """The repos that everybody may see."""
    repos = list(hub.store.visible("model", request.account))
    items = "".join(f'<li><a href="/{escape(repo.state.id)}">{escape(repo.state.id)}</a></li>' for repo in repos)
    return _page("Local Hub", f"<h1>Models</h1><ul>{items}</ul>" if repos else "<p>No model was published yet.</p>")


@route("GET", f"/(?!api/){REPO}")
@route("GET", f"/(?!api/){REPO}/commit/(?P<revision>[0-9a-f]{{40}})")
def repo_page(hub: LocalHub, request: Request) -> Response:
    """A repo's card and its files."""
    repo = open_repo(hub, request)
    commit = repo.resolve(request.revision)
    readme = commit.files.get("README.md")
    text = "*This repo has no card.*"
    if readme and readme.size <= MAX_CARD:
        text = hub.store.blobs.read(readme.sha256).decode("utf-8", "replace")
    base = f"/{repo.state.id}/resolve/{commit.oid}/"
    files = "".join(
        f'<tr><td><a href="./{quote(path)}">{escape(path)}</a></td><td>{entry.size:,} bytes</td></tr>'
        for path, entry in commit.files.items()
    )
    title = escape(repo.state.id)
    content = (
        f"<h1>{title}</h1>{render_markdown(text)}<h2>Files</h2><table>{files}</table><p><code>{commit.oid}</code></p>"
    )
    return _page(title, content, f'<base href="{escape(base)}">')


def render_markdown(text: str) -> str:
    """A card as HTML: without its front matter and comments, and with any HTML in it shown as text."""
    from markdown_it import MarkdownIt

    body = _without_comments(FRONT_MATTER.sub("", text))
    if len(body) > _MAX_RENDERED:
        return f"<pre>{escape(body)}</pre>"
    return str(MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render(body))


def _without_comments(text: str) -> str:
    """By hand: a pattern takes quadratic time where many comments are opened and none is closed."""
    kept, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[place:start])
        place = end + len("-->")
    return "".join([*kept, text[place:]])


def _page(title: str, content: str, base: str = "") -> Response:
    text = _PAGE.format(title=title, content=content, base=base)
    return Response(body=text, headers={"Content-Security-Policy": _POLICY}, content_type="text/html; charset=utf-8")
