"""Builds the documentation of the package and of the core. Warnings are errors.

Links within the pages are followed, anchors included, as Sphinx takes HTML and what links
to it on trust.
"""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from environments import DOCS, ROOT, Environment, call, install, prepare
from steps import Steps

BUILT = ROOT / "build" / "docs"


class Page(HTMLParser):
    """The anchors of a page, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """Links from page to page, or to files beside them, that lead nowhere."""
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            page_link, anchor = urldefrag(unquote(link))
            target = (
                (path.parent / page_link.partition("?")[0]).resolve() if page_link else path
            )
            target = target / "index.html" if target.is_dir() else target
            has_anchor = target not in pages or anchor in {"", *pages[target].anchors}
            if not (target.exists() and has_anchor):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return sorted(set(broken))


def main() -> int:
    path = prepare(Environment())
    install(path, *DOCS)
    steps = Steps(3)
    steps.begin(f"Sphinx: docs into {BUILT.relative_to(ROOT)}")
    sphinx = (path / "bin" / "python", "-P", "-m", "sphinx", "-W", "-q", "--keep-going")
    failed = subprocess.run([*map(str, sphinx), "docs", str(BUILT)], cwd=ROOT).returncode
    steps.begin("links between the pages")
    for link in broken_links(BUILT):
        print(f"broken link: {link}")
        failed = 1
    steps.begin("rustdoc: the core into target/doc")
    core = ("cargo", "doc", "--quiet", "--locked", "--no-deps", "--document-private-items")
    call(*core, RUSTDOCFLAGS="-D warnings")
    if failed:
        print("FAILED docs")
    else:
        print(f"ok docs: {BUILT.relative_to(ROOT)}/index.html ({steps.took()})")
    return failed


if __name__ == "__main__":
    sys.exit(main())
